package regional_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// lines collects the lines of a log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// drain returns the lines that contain text and were logged since the last call.
func (l *lines) drain(text string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, text) {
			out = append(out, line)
		}
	}
	l.buf.Reset()
	return out
}

// TestWaitingServersLogMissingServers: servers wait while the group forms, and when it has
// lost its quorum. They then log which servers they see, how many are missing, and advice.
func TestWaitingServersLogMissingServers(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		var log lines
		w.log = slog.New(slog.NewTextHandler(&log, nil))
		w.server(1, 2)
		w.server(2, 1)
		time.Sleep(25 * time.Second)
		logged := log.drain("waits for further servers")
		if len(logged) != 6 { // each of the two servers after 3, 13 and 23 seconds
			t.Fatalf("%d lines in 25 s: %q", len(logged), logged)
		}
		for _, want := range []string{"s1", "s2", "expect=3", "missing=1", "advice="} {
			if !strings.Contains(logged[5], want) {
				t.Errorf("no %q in %s", want, logged[5])
			}
		}
		w.server(3, 1)
		m := w.master(1, 2, 3)
		log.drain("")
		time.Sleep(time.Minute)
		if logged := log.drain("advice="); len(logged) > 0 {
			t.Errorf("with a master: %q", logged)
		}
		left := m%3 + 1
		for i := 1; i <= 3; i++ {
			if i != left {
				w.kill(i)
			}
		}
		time.Sleep(40 * time.Second)
		logged = log.drain("no quorum")
		if len(logged) < 2 || len(logged) > 4 {
			t.Fatalf("%d lines in 40 s without a quorum: %q", len(logged), logged)
		}
		last := logged[len(logged)-1]
		for i := 1; i <= 3; i++ {
			if gone := strings.Contains(last, serverIP(i)+":7611"); gone != (i != left) {
				t.Errorf("server %d is missing: %v, in %s", i, gone, last)
			}
		}
		for _, want := range []string{"voters=3", "needed=2", "advice="} {
			if !strings.Contains(last, want) {
				t.Errorf("no %q in %s", want, last)
			}
		}
	})
}
