package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// drainWait bounds the wait for further output after a command has ended. Only a process
// that escaped from its supervisor can still hold the streams open.
const drainWait = time.Second

// Exec runs a further command in the run in dir (see driver.Driver). The supervisor starts
// the command with streams, and this process holds the other ends of the streams.
func Exec(ctx context.Context, dir string, x driver.Exec) (driver.ExitStatus, error) {
	if len(x.Command) == 0 || x.Command[0] == "" {
		return driver.ExitStatus{}, fmt.Errorf("%w: exec: no command", driver.ErrInvalid)
	}
	s, err := openTerminals(x)
	if err != nil {
		return driver.ExitStatus{}, fmt.Errorf("%w: exec: %w", driver.ErrStart, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.begin(x, cancel)
	st, err := execOn(ctx, dir, x.Command, x.TTY, s.child)
	s.finish()
	if cause := context.Cause(ctx); cause != nil {
		err = cause // the context has ended, or an output cannot be written
	}
	if err != nil {
		return driver.ExitStatus{}, err
	}
	return st, nil
}

// pair is a stream that this process reads, and the writer that gets its data.
type pair struct {
	from *os.File
	to   io.Writer
}

// terminals holds both ends of the streams of a further command.
type terminals struct {
	child    []*os.File
	in       *os.File // nil if the command gets no input
	out      []pair
	terminal *os.File // the terminal, for input and output, or nil
	ended    chan struct{}
	copies   sync.WaitGroup
}

// openTerminals makes a terminal or pipes. A stream that the caller does not give is
// connected to /dev/null.
func openTerminals(x driver.Exec) (t *terminals, err error) {
	t = &terminals{ended: make(chan struct{})}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if x.TTY {
		slave, err := t.openTerminal(x.Size)
		if err != nil {
			return t, fmt.Errorf("terminal: %w", err)
		}
		// The file is duplicated for standard output and error, so that each descriptor can
		// be closed once.
		for range 2 {
			fd, err := unix.FcntlInt(slave.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return t, err
			}
			t.child = append(t.child, os.NewFile(uintptr(fd), "terminal"))
		}
		t.in, t.out = t.terminal, []pair{{t.terminal, x.Stdout}}
		return t, nil
	}
	if x.Stdin == nil {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return t, err
		}
		t.child = append(t.child, null)
	} else {
		r, w, err := os.Pipe()
		if err != nil {
			return t, err
		}
		t.child, t.in = append(t.child, r), w
	}
	for _, to := range []io.Writer{x.Stdout, x.Stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return t, err
		}
		t.child, t.out = append(t.child, w), append(t.out, pair{r, to})
	}
	return t, nil
}

// openTerminal makes a pseudoterminal of a size and returns the end for the command.
func (t *terminals) openTerminal(size driver.WindowSize) (*os.File, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t.terminal = master
	t.resize(size)
	var number uint32
	err = t.control(func(fd int) (err error) {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
		if err == nil {
			number, err = unix.IoctlGetUint32(fd, unix.TIOCGPTN)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t.child = append(t.child, slave)
	return slave, nil
}

func (t *terminals) control(f func(fd int) error) error {
	raw, err := t.terminal.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	return errors.Join(raw.Control(func(fd uintptr) { failed = f(int(fd)) }), failed)
}

// resize passes a new size to the kernel, which signals the command.
func (t *terminals) resize(size driver.WindowSize) {
	_ = t.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: size.Columns, Row: size.Rows})
	})
}

// begin starts the copies in both directions. If an output cannot be written, the session
// ends.
func (t *terminals) begin(x driver.Exec, cancel context.CancelCauseFunc) {
	if t.in != nil && x.Stdin != nil {
		// No goroutine waits for this one, because its read may block for ever.
		go func() {
			_, _ = io.Copy(t.in, x.Stdin)
			if t.in != t.terminal {
				t.in.Close()
			}
		}()
	}
	for _, p := range t.out {
		t.copies.Go(func() {
			if err := t.copy(p); err != nil {
				cancel(fmt.Errorf("its output cannot be written: %w", err))
			}
		})
	}
	if t.terminal != nil && x.Resize != nil {
		t.copies.Go(func() {
			for {
				select {
				case size, ok := <-x.Resize:
					if !ok {
						return
					}
					t.resize(size)
				case <-t.ended:
					return
				}
			}
		})
	}
}

// copy copies a stream until its end. At the end of a terminal the read returns an error.
// After the end of the command, a pause of drainWait without data also counts as the end.
func (t *terminals) copy(p pair) error {
	buf := make([]byte, driver.MaxChunk)
	ended := false
	for {
		n, err := p.from.Read(buf)
		if n > 0 && p.to != nil {
			if _, err := p.to.Write(buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) && !ended {
			ended = true // finish has set the deadline
		} else if err != nil {
			return nil
		}
		if ended {
			_ = p.from.SetReadDeadline(time.Now().Add(drainWait))
		}
	}
}

// finish waits until the remaining output is written.
func (t *terminals) finish() {
	close(t.ended)
	for _, p := range t.out {
		_ = p.from.SetReadDeadline(time.Unix(1, 0))
	}
	t.copies.Wait()
	t.close()
}

// close closes every end that this process holds. It may be called twice.
func (t *terminals) close() {
	for _, f := range t.child {
		f.Close()
	}
	for _, p := range t.out {
		p.from.Close()
	}
	for _, f := range []*os.File{t.in, t.terminal} {
		if f != nil {
			f.Close()
		}
	}
}
