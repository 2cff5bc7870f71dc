package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestExecPassesInputOn: standard input and standard output arrive completely.
func TestExecPassesInputOn(t *testing.T) {
	f := newFake(t)
	want := strings.Repeat("0123456789abcde\n", 10_000)
	out, errs, code := f.run(context.Background(), want, "alloc", "exec", "--addr", f.addr, "-i", "--task", "server", sample.Alloc().GetId(), "--", "cat")
	if out != want || errs != "" || code != 0 {
		t.Errorf("%d bytes of %d, %q, exit code %d", len(out), len(want), errs, code)
	}
}

// TestExecPassesTheTerminalOn: keys are sent unchanged, including Ctrl-C. The size of the
// terminal is sent at the start and at each change. The terminal's mode is restored at the
// end.
func TestExecPassesTheTerminalOn(t *testing.T) {
	f := newFake(t)
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here:", err)
	}
	defer master.Close()
	fd := int(master.Fd())
	number, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	err = errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	if err != nil {
		t.Fatal(err)
	}
	screen, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	resize := func(columns, rows uint16) {
		if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}); err != nil {
			t.Fatal(err)
		}
	}
	resize(90, 30)
	before, err := unix.IoctlGetTermios(int(screen.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	out := &seen{waits: map[string]func(){
		// Each output triggers the next step.
		"\x03":       func() { resize(100, 40); _ = syscall.Kill(os.Getpid(), syscall.SIGWINCH) },
		"100 x 40\n": func() { _, _ = master.Write([]byte{4}) },
	}}
	go func() {
		// Ctrl-C is a signal until the terminal is in raw mode.
		for t.Context().Err() == nil {
			if now, err := unix.IoctlGetTermios(int(screen.Fd()), unix.TCGETS); err != nil || now.Lflag&unix.ISIG == 0 {
				break
			}
			runtime.Gosched()
		}
		_, _ = master.Write([]byte{3})
	}()
	root := Root()
	root.AddCommand(Commands()...)
	root.SetIn(screen)
	root.SetOut(out)
	if code := ExecuteArgs(t.Context(), root, []string{"alloc", "exec", "--addr", f.addr, "-it", "--task", "server", "11112222", "--", "sh"}); code != 7 {
		t.Errorf("exit code %d after %q", code, out.text.String())
	}
	start := &nusav1.ExecRequest{Start: &nusav1.ExecRequest_Start{Allocation: sample.Alloc().GetId(), Task: "server", Command: []string{"sh"}, Tty: true, Size: &nusav1.TerminalSize{Columns: 90, Rows: 30}}}
	if got := f.taken(); len(got) != 1 || !proto.Equal(got[0], start) {
		t.Errorf("began with %v, want %v", got, start)
	}
	after, err := unix.IoctlGetTermios(int(screen.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal was %+v and is %+v: %v", before, after, err)
	}
}

// seen stores the output and calls a function when the output contains a text.
type seen struct {
	mu    sync.Mutex
	text  bytes.Buffer
	waits map[string]func()
}

func (s *seen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(p)
	for text, act := range s.waits {
		if strings.Contains(s.text.String(), text) {
			delete(s.waits, text)
			act()
		}
	}
	return len(p), nil
}
