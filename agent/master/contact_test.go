package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, string(p))
	return len(p), nil
}

// take returns the lines since the previous call.
func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := strings.Join(l.text, "")
	l.text = nil
	return out
}

// TestWarningsFollowTheContact: the first message of a server ends the warnings. They begin
// again after the last session is lost, after the same delay as at the start.
func TestWarningsFollowTheContact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &lines{}
		c := newContact(slog.New(slog.NewTextHandler(log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.run(ctx) }()
		wait := func(d time.Duration) string {
			time.Sleep(d)
			synctest.Wait()
			return log.take()
		}
		c.try("a:1")
		c.end("a:1", false, errors.New("connection refused"))
		if got := wait(5 * time.Second); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "a:1: connection refused") {
			t.Errorf("without a server: %q", got)
		}
		c.greet("a:1")
		if got := wait(0); !strings.Contains(got, "the region is reached") {
			t.Errorf("at the greeting: %q", got)
		}
		c.greet("b:1")
		c.end("a:1", true, errors.New("the server ended"))
		c.try("a:1")
		c.end("a:1", false, errors.New("connection refused"))
		if got := wait(2 * time.Minute); got != "" {
			t.Errorf("with one session left: %q", got)
		}
		c.end("b:1", true, errors.New("the server ended"))
		if got := wait(3 * time.Second); got != "" {
			t.Errorf("just after the loss: %q", got)
		}
		if got := wait(2 * time.Second); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "b:1: the server ended") {
			t.Errorf("after the loss: %q", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestFirewallIsNamedOnlyWithoutAnswer: a warning names the firewall only if no server has
// answered, --identity only if a program accepted the connection and closed it, and the certificates
// only if the handshake failed.
func TestFirewallIsNamedOnlyWithoutAnswer(t *testing.T) {
	for _, c := range []struct {
		err  error
		hint bool
		// advice is a part of the advice about identities.
		advice string
	}{
		{errors.New("connection refused"), true, ""},
		{fmt.Errorf("%w: no greeting within 5s", errSilent), true, ""},
		{fmt.Errorf("session ended: %w", status.Error(codes.Canceled, "context canceled")), true, ""},
		{fmt.Errorf("session ended: %w", status.Error(codes.Unavailable, `connection error: desc = "error reading server preface: EOF"`)), false, "this agent needs --identity"},
		{fmt.Errorf("session ended: %w", status.Error(codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: remote error: tls: expired certificate"`)), false, "nusa ca issue"},
		{fmt.Errorf("%w for 10s", errNoMaster), false, ""},
		{fmt.Errorf("session ended: %w", status.Error(codes.FailedPrecondition, "another node has this name")), false, ""},
	} {
		log := &lines{}
		contact := newContact(slog.New(slog.NewTextHandler(log, nil)))
		contact.try("a:1")
		contact.end("a:1", false, c.err)
		contact.warn()
		adviceOf := func(got string) string {
			for _, advice := range []string{"this agent needs --identity", "nusa ca issue"} {
				if strings.Contains(got, advice) {
					return advice
				}
			}
			return ""
		}
		if got := log.take(); strings.Contains(got, "firewall") != c.hint || !strings.Contains(got, "check=") || adviceOf(got) != c.advice {
			t.Errorf("%v: %s", c.err, got)
		}
		contact.try("a:1") // the next attempt has no result yet
		contact.warn()
		if got := log.take(); adviceOf(got) != c.advice {
			t.Errorf("%v, while the next attempt is under way: %s", c.err, got)
		}
	}
}
