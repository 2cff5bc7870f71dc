package trust_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TestWatch: a member without new connections logs files that it cannot use, and the end of its
// certificate, once each.
func TestWatch(t *testing.T) {
	dirs := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ca := pkitest.New(t)
		ca.Now = time.Now().Add(time.Minute - 24*time.Hour) // an agent's certificate ends in a minute
		if err := trust.Write(dirs, ca.Issue("region/a/agent/n1")); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var logged bytes.Buffer
		s, err := trust.Open(trust.Options{Dir: dirs, Logger: slog.New(slog.NewTextHandler(&lockedWriter{w: &logged, mu: &mu}, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Watch(ctx) }()
		after := func(d time.Duration, want string, times int) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if n := strings.Count(logged.String(), want); n != times {
				t.Errorf("%d lines with %q, want %d:\n%s", n, want, times, logged.String())
			}
		}
		after(12*time.Second, "level=WARN", 0)
		if err := trust.Write(dirs, ca.Issue("region/a/agent/n2")); err != nil {
			t.Fatal(err)
		}
		after(12*time.Second, "restart to use another identity", 1)
		after(time.Minute, "has expired", 1)
		after(time.Minute, "has expired", 1)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestWatchWithoutIdentity: the watch of a member without identity lasts as long as the member.
func TestWatchWithoutIdentity(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var none *trust.Source
	if err := none.Watch(ctx); err != nil {
		t.Error(err)
	}
}
