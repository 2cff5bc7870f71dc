package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Logs implements driver.Driver. Without Follow it fails if the plugin pauses for longer
// than the limit of a call that changes something.
func (d *Driver) Logs(ctx context.Context, id driver.ID, o driver.LogOptions, emit func(driver.LogChunk) error) error {
	v := verb{name: "Logs", limit: d.limits.slow}
	l, err := d.current(ctx, false)
	if err != nil {
		return &Error{Plugin: d.cfg.Name, Verb: v.name, Kind: driver.ErrUnavailable, Text: err.Error()}
	}
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	idle := time.AfterFunc(v.limit, cancel)
	defer idle.Stop()
	if o.Follow {
		idle.Stop()
	}
	stream, err := l.client.Logs(own, &nusav1.RunLogsRequest{Id: idToProto(id), Stdout: o.Stdout, Stderr: o.Stderr, Follow: o.Follow, TailBytes: o.TailBytes, TailLines: int32(o.TailLines)})
	if err != nil {
		return d.explain(ctx, own, l, v, err)
	}
	for {
		c, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return d.explain(ctx, own, l, v, err)
		}
		if !o.Follow {
			idle.Reset(v.limit)
		}
		if err := checkData("data", c.GetData()); err != nil {
			return d.breach(v.name, err)
		}
		if len(c.GetData()) == 0 {
			continue
		}
		if err := emit(driver.LogChunk{Stderr: c.GetStderr(), Data: c.GetData()}); err != nil {
			return err
		}
	}
}

// Exec implements driver.Driver. It buffers one message in each direction.
func (d *Driver) Exec(ctx context.Context, id driver.ID, x driver.Exec) (driver.ExitStatus, error) {
	v := verb{name: "Exec"}
	l, err := d.current(ctx, false)
	if err != nil {
		return driver.ExitStatus{}, &Error{Plugin: d.cfg.Name, Verb: v.name, Kind: driver.ErrUnavailable, Text: err.Error()}
	}
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := l.client.Exec(own)
	if err != nil {
		return driver.ExitStatus{}, d.explain(ctx, ctx, l, v, err)
	}
	s := &session{stream: stream}
	start := &nusav1.RunExecRequest_Start{Id: idToProto(id), Command: x.Command, Tty: x.TTY}
	if x.TTY {
		start.Size = sizeToProto(x.Size)
	}
	s.send(&nusav1.RunExecRequest{Start: start})
	go s.input(x.Stdin)
	go s.resizes(own, x.Resize)
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return driver.ExitStatus{}, d.breach(v.name, errors.New("the session ended without a message with exited"))
		}
		if err != nil {
			return driver.ExitStatus{}, d.explain(ctx, ctx, l, v, err)
		}
		if st, over, err := s.take(m, x); err != nil {
			if errors.Is(err, driver.ErrContract) {
				err = d.breach(v.name, err)
			}
			return st, err
		} else if over {
			return st, nil
		}
	}
}

// session is the stream of one further command.
type session struct {
	stream nusav1.Driver_ExecClient
	mu     sync.Mutex // guards sending
}

// send returns false if the session has ended. The receiving goroutine notices the end,
// too.
func (s *session) send(m *nusav1.RunExecRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.Send(m) == nil
}

// input copies the command's input to the plugin, until the reader or the session ends.
func (s *session) input(r io.Reader) {
	if r != nil {
		for buf := make([]byte, driver.MaxChunk); ; {
			n, err := r.Read(buf)
			if n > 0 && !s.send(&nusav1.RunExecRequest{Stdin: slices.Clone(buf[:n])}) {
				return
			}
			if err != nil {
				break
			}
		}
	}
	s.send(&nusav1.RunExecRequest{StdinClose: true})
}

// resizes passes the sizes of a terminal to the plugin.
func (s *session) resizes(ctx context.Context, sizes <-chan driver.WindowSize) {
	for {
		select {
		case w, ok := <-sizes:
			if !ok {
				return
			}
			s.send(&nusav1.RunExecRequest{Resize: sizeToProto(w)})
		case <-ctx.Done():
			return
		}
	}
}

// take handles one message of the plugin. over reports that the command has ended.
func (s *session) take(m *nusav1.RunExecResponse, x driver.Exec) (st driver.ExitStatus, over bool, err error) {
	for _, out := range []struct {
		name string
		data []byte
		to   io.Writer
	}{{"stdout", m.GetStdout(), x.Stdout}, {"stderr", m.GetStderr(), x.Stderr}} {
		if err := checkData(out.name, out.data); err != nil {
			return st, false, err
		}
		if len(out.data) > 0 && out.to != nil {
			if _, err := out.to.Write(out.data); err != nil {
				return st, false, err
			}
		}
	}
	if !m.GetExited() {
		return st, false, nil
	}
	if m.GetExitCode() < 0 || m.GetExitCode() > 255 || m.GetSignal() < 0 || m.GetSignal() > 64 {
		return st, true, fmt.Errorf("%w: exit_code %d, signal %d: not within 0..255 and 0..64", driver.ErrContract, m.GetExitCode(), m.GetSignal())
	}
	if code := int(m.GetExitCode()); m.GetFault() != "" {
		if code != driver.NoCommand && code != driver.NotExecutable {
			return st, true, fmt.Errorf("%w: fault with exit_code %d: neither %d nor %d", driver.ErrContract, code, driver.NotExecutable, driver.NoCommand)
		}
		return st, true, &driver.CommandError{Code: code, Text: clip(m.GetFault(), maxMessage)}
	}
	return driver.ExitStatus{Code: int(m.GetExitCode()), Signal: int(m.GetSignal())}, true, nil
}
