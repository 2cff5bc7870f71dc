package supervise

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// boxed returns a run's folder with a record that says that the run is running. The
// container may have forged that record.
func boxed(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), Box)
	if err := errors.Join(os.Mkdir(dir, 0o700), writeRecord(dir, record{Status: driver.Status{State: driver.Running}})); err != nil {
		t.Fatal(err)
	}
	lock, err := takeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	return dir
}

// TestSocketOfAnother: a link in place of a supervisor's socket must not lead to another
// supervisor. That supervisor would be stopped, or would run the commands.
func TestSocketOfAnother(t *testing.T) {
	dir, other := boxed(t), t.TempDir()
	l, err := net.Listen("unix", filepath.Join(other, socketFile))
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		if conn, err := l.Accept(); err == nil {
			t.Error("the other one is asked")
			conn.Close()
		}
	}()
	if err := os.Symlink(filepath.Join(other, socketFile), filepath.Join(dir, socketFile)); err != nil {
		t.Fatal(err)
	}
	if conn, err := dial(t.Context(), dir, request{Op: "stop"}); err == nil {
		conn.Close()
		t.Error("a link is taken for a socket")
	}
	l.Close()
	<-asked
}

// TestEndlessReply: a program in a container sends an endless response. The caller stops
// reading it and returns an error.
func TestEndlessReply(t *testing.T) {
	dir := boxed(t)
	l, err := net.Listen("unix", filepath.Join(dir, socketFile))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	written := make(chan int64, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		n, _ := io.Copy(conn, io.LimitReader(zeros{}, 1<<30))
		written <- n
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := call(ctx, dir, request{Op: "wait"}); err == nil {
		t.Error("taken for an answer")
	}
	if n := <-written; n >= 64<<20 {
		t.Errorf("%d bytes were read of one line", n)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
