package agent

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver/mock"
	"github.com/nusa-scheduler/nusa/internal/network"
)

// logLines collects the lines of a log.
type logLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// with returns the lines that contain a text.
func (l *logLines) with(text string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, text) {
			out = append(out, line)
		}
	}
	return out
}

// TestAgentWarnsWhileItReachesNoServer: the first warning comes within 5 s of the start,
// and further warnings follow every 30 s. A warning names each address with its last error
// and says what to check.
func TestAgentWarnsWhileItReachesNoServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		lines := &logLines{}
		c := testConfig(t, t.TempDir(), mock.New(mock.Config{}), "10.0.0.1:7610", "10.0.0.2:7610")
		c.Logger = slog.New(slog.NewTextHandler(lines, nil))
		start := time.Now()
		c.Clock, c.BootID = func() time.Duration { return time.Since(start) + time.Hour }, "boot"
		c.Net = network.Net{Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			if strings.HasPrefix(addr, "10.0.0.2") { // this host does not respond
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		}}
		ended := make(chan error, 1)
		go func() { ended <- Run(ctx, c) }()
		const text = "the region cannot be reached"
		time.Sleep(5 * time.Second)
		synctest.Wait()
		first := lines.with(text)
		if len(first) != 1 || !strings.Contains(first[0], "level=WARN") {
			t.Fatalf("warnings within 5 s: %q", first)
		}
		for _, want := range []string{"10.0.0.1:7610: ", "connection refused", "--bind", "--servers", "for=4s"} {
			if !strings.Contains(first[0], want) {
				t.Errorf("the warning lacks %q: %s", want, first[0])
			}
		}
		time.Sleep(65 * time.Second)
		synctest.Wait()
		all := lines.with(text)
		if len(all) != 3 || !strings.Contains(fmt.Sprint(all), "10.0.0.2:7610: ") {
			t.Errorf("warnings within 70 s: %q", all)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
