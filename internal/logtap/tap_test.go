package logtap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// taken returns the records that wait for a follower, one a line.
func taken(f *Follower) string {
	var b strings.Builder
	for {
		select {
		case r := <-f.Records():
			fmt.Fprintf(&b, "%v %s", r.Level, r.Message)
			for _, a := range r.Attributes {
				fmt.Fprintf(&b, " %s=%s", a.Key, a.Value)
			}
			b.WriteByte('\n')
		default:
			return b.String()
		}
	}
}

type secret string

func (secret) LogValue() slog.Value { return slog.StringValue("redacted") }

// TestFollowersHaveTheirOwnLevels: the log itself has its level and its form, with and without followers.
func TestFollowersHaveTheirOwnLevels(t *testing.T) {
	var out bytes.Buffer
	plain := func(w *bytes.Buffer) *slog.Logger {
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
	}
	tap := New()
	log := tap.Logger(plain(&out))
	say := func(log *slog.Logger) {
		log = log.With("a", 1).WithGroup("g").With("b", "x y")
		log.Debug("fine", "c", 2)
		log.Info("normal", slog.Group("h", "d", true), "token", secret("hunter2"), slog.Group("", "e", 3))
		log.WithGroup("").Warn("bad")
	}
	if log.Enabled(context.Background(), slog.LevelDebug) {
		t.Error("debug is enabled without followers")
	}
	say(log)
	debug, err := tap.Follow(slog.LevelDebug)
	if err != nil {
		t.Fatal(err)
	}
	warn, err := tap.Follow(slog.LevelWarn)
	if err != nil {
		t.Fatal(err)
	}
	taken(debug) // the latest records
	taken(warn)
	say(log)
	if got, want := taken(debug), "DEBUG fine a=1 g.b=x y g.c=2\nINFO normal a=1 g.b=x y g.h.d=true g.token=redacted g.e=3\nWARN bad a=1 g.b=x y\n"; got != want {
		t.Errorf("debug:\n%s, want\n%s", got, want)
	}
	if got, want := taken(warn), "WARN bad a=1 g.b=x y\n"; got != want {
		t.Errorf("warn:\n%s, want\n%s", got, want)
	}
	debug.Stop()
	debug.Stop()
	if log.Enabled(context.Background(), slog.LevelDebug) || !log.Enabled(context.Background(), slog.LevelWarn) {
		t.Error("the levels after a follower has stopped")
	}
	say(log)
	if taken(debug) != "" {
		t.Error("a stopped follower gets records")
	}
	var alone bytes.Buffer
	for range 3 {
		say(plain(&alone))
	}
	if out.String() != alone.String() {
		t.Errorf("the log is\n%s, and without the tap\n%s", out.String(), alone.String())
	}
}

// TestLatest: a follower first gets the latest records of its level, from info on, and then the others.
func TestLatest(t *testing.T) {
	for level, want := range map[slog.Level]string{slog.LevelDebug: "INFO 3\n", slog.LevelInfo: "INFO 3\n", slog.LevelWarn: "WARN bad\n", slog.LevelError: ""} {
		tap := New()
		log := tap.Logger(nil)
		for i := range recent + 2 {
			log.Info(fmt.Sprint(i))
			log.Debug("for nobody")
		}
		log.Warn("bad")
		f, err := tap.Follow(level)
		if err != nil {
			t.Fatal(err)
		}
		log.Error("next")
		got := taken(f)
		if !strings.HasPrefix(got, want) || strings.Count(got, "\n") > recent+1 || !strings.HasSuffix(got, "ERROR next\n") {
			t.Errorf("%v:\n%s, want first %q", level, got, want)
		}
	}
}

// TestLatestBytes: the latest records are kept only up to a number of bytes.
func TestLatestBytes(t *testing.T) {
	tap := New()
	for i := range recent {
		tap.give(Record{Level: slog.LevelInfo, Message: fmt.Sprint(i), Attributes: []Attribute{{Key: "k", Value: strings.Repeat("v", recentBytes/10)}}})
	}
	f, err := tap.Follow(slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Stop()
	if n := len(f.Records()); n != 9 {
		t.Errorf("%d records are kept, want the 9 that fit", n)
	}
	if first := <-f.Records(); first.Message != fmt.Sprint(recent-9) {
		t.Errorf("the first of them is %s", first.Message)
	}
}

// TestBounds: a slow follower loses records and learns how many; followers, texts and attributes are
// bounded.
func TestBounds(t *testing.T) {
	tap := New()
	log := tap.Logger(nil)
	f, err := tap.Follow(slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	for range queue + 5 {
		log.Info("x")
	}
	if n := strings.Count(taken(f), "\n"); n != queue || f.TakeDropped() != 5 || f.TakeDropped() != 0 {
		t.Errorf("%d records, want %d and 5 dropped", n, queue)
	}
	var many []any
	for i := range 100 {
		many = append(many, slog.Int(fmt.Sprint(i), i))
	}
	log.Info(strings.Repeat("é", maxText), many...)
	r := <-f.Records()
	if len(r.Message) > maxText || !strings.HasSuffix(r.Message, "é…") || len(r.Attributes) != maxAttributes {
		t.Errorf("%d bytes, %d attributes", len(r.Message), len(r.Attributes))
	}
	log.Info("a\xffb")
	if r := <-f.Records(); r.Message != "a\uFFFDb" {
		t.Errorf("%q", r.Message)
	}
	for range maxFollowers - 1 {
		if _, err := tap.Follow(slog.LevelInfo); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tap.Follow(slog.LevelInfo); !errors.Is(err, ErrFull) {
		t.Errorf("one follower more: %v", err)
	}
	f.Stop()
	if _, err := tap.Follow(slog.LevelInfo); err != nil {
		t.Error(err)
	}
}

// receiver is the sending end of a stream in a test.
type receiver struct {
	grpc.ServerStream
	ctx context.Context
	got chan *nusav1.LogRecord
}

func (r *receiver) Context() context.Context     { return r.ctx }
func (r *receiver) SendHeader(metadata.MD) error { return nil }
func (r *receiver) Send(m *nusav1.LogRecord) error {
	r.got <- m
	return nil
}

// TestService: a stream has what is logged while it is open, and leaves no follower behind.
func TestService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tap := New()
		log := tap.Logger(slog.New(slog.DiscardHandler))
		s := &Service{Tap: tap}
		ctx, cancel := context.WithCancel(t.Context())
		down := &receiver{ctx: ctx, got: make(chan *nusav1.LogRecord, 8)}
		for _, level := range []string{"loud", "INFO"} {
			if err := s.Self(&nusav1.MonitorRequest{Level: level}, down); status.Code(err) != codes.InvalidArgument {
				t.Errorf("level %q: %v", level, err)
			}
		}
		if err := s.Member(&nusav1.MonitorMemberRequest{}, down); status.Code(err) != codes.Unimplemented {
			t.Errorf("members of an agent: %v", err)
		}
		ended := make(chan error)
		go func() { ended <- s.Self(&nusav1.MonitorRequest{}, down) }()
		synctest.Wait()
		log.Info("hello", "job", "web")
		got := <-down.got
		if got.GetLevel() != "INFO" || got.GetMessage() != "hello" || len(got.GetAttributes()) != 1 || got.GetAttributes()[0].GetValue() != "web" || got.GetTime() == nil {
			t.Errorf("%v", got)
		}
		cancel()
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("the stream ends with %v", err)
		}
		if len(tap.followers) > 0 {
			t.Error("a follower is left")
		}
	})
}
