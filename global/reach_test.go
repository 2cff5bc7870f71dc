package global

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// logText keeps what was logged.
type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestEtcdDoesNotAnswer: a server that cannot reach etcd says which etcd: in its log, to
// callers, and by /readyz. It is ready again when etcd is back.
func TestEtcdDoesNotAnswer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	member := openMember(t, dir, "127.0.0.1:0")
	addr := member.ClientAddr()
	f := newFederation()
	said, web := &logText{}, make(chan string, 1)
	shared := f.overEtcd("", Etcd{Endpoints: []string{addr}})
	first := f.start(t, "g1", shared)
	s := f.start(t, "g2", func(c *Config) {
		shared(c)
		c.Logger, c.HTTPAddr = slog.New(slog.NewTextHandler(said, nil)), "127.0.0.1:0"
		pipes := c.Net.Listen
		c.Net.Listen = func(ctx context.Context, at string) (net.Listener, error) {
			if strings.HasPrefix(at, "127.") {
				return network.Host().Listen(ctx, at)
			}
			return pipes(ctx, at)
		}
		ready := c.Ready
		c.Ready = func(a Addresses) { web <- a.HTTP; ready(a) }
	})
	base := "http://" + <-web
	member.Close()
	first.stop()
	want := "etcd at " + addr + " does not answer"
	eventually := func(what string, ok func() bool) {
		t.Helper()
		tick, end := time.NewTicker(50*time.Millisecond), time.After(testWait)
		defer tick.Stop()
		for !ok() {
			select {
			case <-tick.C:
			case <-end:
				t.Fatalf("%s; logged:\n%s", what, said)
			}
		}
	}
	ready := func() (int, string) {
		resp, err := http.Get(base + "/readyz")
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	eventually("/readyz does not say so", func() bool {
		code, body := ready()
		return code == http.StatusServiceUnavailable && strings.Contains(body, want)
	})
	eventually("calls do not say so", func() bool {
		_, err := s.jobs().List(t.Context(), &nusav1.ListJobsRequest{})
		return err != nil && strings.Contains(err.Error(), want)
	})
	eventually("the log does not say so", func() bool {
		return strings.Contains(said.String(), "level=WARN msg=\""+want) && strings.Contains(said.String(), `msg="not active" error="`+want)
	})
	if !strings.Contains(said.String(), "waiting for etcd at "+addr) {
		t.Errorf("the start does not say what it waits for:\n%s", said)
	}
	openMember(t, dir, addr)
	waitActive(t, s)
	eventually("not ready with etcd", func() bool { code, _ := ready(); return code == http.StatusOK })
}
