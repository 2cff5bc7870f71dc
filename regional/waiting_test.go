package regional_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// lines are a log's lines.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// take answers the lines with a text since the last call.
func (l *lines) take(text string) (out []string) {
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

// TestWaitingServersSaySo: who was found, how many are missing, what to do;
// while the group forms, and when it has lost its quorum.
func TestWaitingServersSaySo(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		var log lines
		w.log = slog.New(slog.NewTextHandler(&log, nil))
		w.server(1, 2)
		w.server(2, 1)
		time.Sleep(25 * time.Second)
		said := log.take("waiting for servers")
		if len(said) != 6 { // each of the two after 3, 13 and 23 seconds
			t.Fatalf("%d lines in 25 s: %q", len(said), said)
		}
		for _, want := range []string{"s1", "s2", "expect=3", "missing=1", "todo="} {
			if !strings.Contains(said[5], want) {
				t.Errorf("no %q in %s", want, said[5])
			}
		}
		w.server(3, 1)
		m := w.master(1, 2, 3)
		log.take("")
		time.Sleep(time.Minute)
		if said := log.take("todo="); len(said) > 0 {
			t.Errorf("with a master: %q", said)
		}
		left := m%3 + 1
		for i := 1; i <= 3; i++ {
			if i != left {
				w.kill(i)
			}
		}
		time.Sleep(40 * time.Second)
		said = log.take("no quorum")
		if len(said) < 2 || len(said) > 4 {
			t.Fatalf("%d lines in 40 s without a quorum: %q", len(said), said)
		}
		last := said[len(said)-1]
		for i := 1; i <= 3; i++ {
			if gone := strings.Contains(last, serverIP(i)+":7611"); gone != (i != left) {
				t.Errorf("server %d is missing: %v, in %s", i, gone, last)
			}
		}
		for _, want := range []string{"voters=3", "needed=2", "todo="} {
			if !strings.Contains(last, want) {
				t.Errorf("no %q in %s", want, last)
			}
		}
	})
}
