package logtap

import (
	"errors"
	"io"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Stream is the receiving end of a log.
type Stream = grpc.ServerStreamingServer[nusav1.LogRecord]

// Service serves the log of a process.
type Service struct {
	nusav1.UnimplementedMonitorServer
	Tap *Tap
	// Relay serves Member. Nil: the process has no members.
	Relay func(*nusav1.MonitorMemberRequest, Stream) error
}

// Self implements nusav1.MonitorServer.
func (s *Service) Self(req *nusav1.MonitorRequest, down Stream) error {
	level, err := parseLevel(req.GetLevel())
	if err != nil {
		return err
	}
	f, err := s.Tap.Follow(level)
	if err != nil {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	defer f.Stop()
	err = down.SendHeader(nil) // the caller misses nothing from now on
	if err != nil {
		return err
	}
	for {
		select {
		case <-down.Context().Done():
			return status.FromContextError(down.Context().Err()).Err()
		case r := <-f.Records():
			err := down.Send(toProto(r, f.TakeDropped()))
			if err != nil {
				return err
			}
		}
	}
}

// Member implements nusav1.MonitorServer.
func (s *Service) Member(req *nusav1.MonitorMemberRequest, down Stream) error {
	if s.Relay == nil {
		return status.Error(codes.Unimplemented, "an agent has no members")
	}
	_, err := parseLevel(req.GetLevel())
	if err != nil {
		return err
	}
	return s.Relay(req, down)
}

// FromSelf passes on what the process behind conn logs.
func FromSelf(conn *grpc.ClientConn, level string, down Stream) error {
	up, err := nusav1.NewMonitorClient(conn).Self(down.Context(), &nusav1.MonitorRequest{Level: level})
	return relay(up, err, down)
}

// FromMember passes on what a member of the process behind conn logs.
func FromMember(conn *grpc.ClientConn, req *nusav1.MonitorMemberRequest, down Stream) error {
	up, err := nusav1.NewMonitorClient(conn).Member(down.Context(), req)
	return relay(up, err, down)
}

func relay(up grpc.ServerStreamingClient[nusav1.LogRecord], err error, down Stream) error {
	if err == nil {
		_, err = up.Header()
	}
	if err == nil {
		err = down.SendHeader(nil)
	}
	for err == nil {
		var r *nusav1.LogRecord
		r, err = up.Recv()
		if err == nil {
			err = down.Send(r)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// parseLevel reads a level of a request.
func parseLevel(text string) (slog.Level, error) {
	switch text {
	case "debug":
		return slog.LevelDebug, nil
	case "", "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, status.Errorf(codes.InvalidArgument, "level: %.20q is not one of debug, info, warn, error", text)
}

func toProto(r Record, dropped uint64) *nusav1.LogRecord {
	out := &nusav1.LogRecord{Time: timestamppb.New(r.Time), Level: r.Level.String(), Message: r.Message, Dropped: dropped}
	for _, a := range r.Attributes {
		out.Attributes = append(out.Attributes, &nusav1.LogAttribute{Key: a.Key, Value: a.Value})
	}
	return out
}
