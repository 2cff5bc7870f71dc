package alloc

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	xterm "github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// exitExecError is the exit code of `alloc exec` for an error of Nusa itself. Other
	// exit codes come from the command.
	exitExecError = 255
	// exitExecLost is the exit code of `alloc exec` if the connection is lost while the
	// command runs.
	exitExecLost = 254
	// exitInterrupted is the exit code that shells use after Ctrl-C.
	exitInterrupted = 128 + int(syscall.SIGINT)
	// maxExecInput bounds the standard input in one message, in bytes.
	maxExecInput = 32 << 10
)

func execCommand(s *cli.Settings) *cobra.Command {
	var task string
	var input, tty bool
	c := &cobra.Command{
		Use: "exec ID|JOB -- COMMAND…", Short: "Run a command where a task runs",
		Long: `Runs a command with a task's user, folder and environment, and ends with the exit
code of the command. Other exit codes: 127 the command was not found, 126 it cannot be
executed, 255 an error of Nusa itself, 254 the connection was lost. An election of the
servers also ends the connection, because exec cannot continue on another server.

If the connection is lost or alloc exec is interrupted, the command is killed, with
everything that it started.

` + instanceHelp,
		Example:     "  nusa alloc exec -it 1f3a -- sh\n  nusa alloc exec hello/greeter/0 -- env\n  nusa alloc exec 1f3a -- cat local/app.conf\n  nusa alloc exec -i 1f3a -- tar -x <files.tar",
		Annotations: map[string]string{cli.ErrorCodeKey: fmt.Sprint(exitExecError)},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return fmt.Errorf("COMMAND is missing; usage: %s [-i] [-t] ID|JOB -- COMMAND…", cmd.CommandPath())
			}
			return nil
		},
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if c.Output != "table" {
				return errors.New("--output: alloc exec prints what its command prints")
			}
			ctx, cancel := c.WithTimeout()
			a, err := findAlloc(ctx, c, args[0])
			cancel()
			if err != nil {
				return err
			}
			if names := slices.Sorted(maps.Keys(a.GetTasks())); task == "" && len(names) > 1 {
				return fmt.Errorf("%s has %s: say --task %s", instance(a), term.Plural(len(names), "task"), strings.Join(names, " or --task "))
			}
			start := &nusav1.ExecRequest_Start{Allocation: a.GetId(), Task: task, Command: args[1:], Tty: tty}
			return runExec(c, start, input)
		}),
	}
	f := c.Flags()
	f.BoolVarP(&input, "stdin", "i", false, "pass on standard input")
	f.BoolVarP(&tty, "tty", "t", false, "run the command in a terminal")
	f.StringVar(&task, "task", "", "name of the task; required when there are several")
	return c
}

// execSession is one command that runs in an allocation.
type execSession struct {
	stream nusav1.Allocations_ExecClient
	mu     sync.Mutex // guards sending
}

func (x *execSession) send(m *nusav1.ExecRequest) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.stream.Send(m)
}

func runExec(c *cli.Session, start *nusav1.ExecRequest_Start, input bool) error {
	in := c.Cmd.InOrStdin()
	screen, ok := in.(*os.File)
	if start.GetTty() && (!ok || !xterm.IsTerminal(screen.Fd())) {
		return errors.New("--tty: standard input is not a terminal")
	}
	if start.GetTty() {
		start.Size = terminalSize(screen)
	}
	stream, err := c.Allocs().Exec(c.Ctx)
	if err != nil {
		return err
	}
	x := &execSession{stream: stream}
	// A failed send returns io.EOF, and receiveExec then returns the cause.
	if err := x.send(&nusav1.ExecRequest{Start: start}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if start.GetTty() {
		was, err := xterm.MakeRaw(screen.Fd())
		if err != nil {
			return fmt.Errorf("--tty: %w", err)
		}
		defer func() { _ = xterm.Restore(screen.Fd(), was) }()
		defer x.followSize(screen)()
	}
	if input {
		go x.copyInput(in) // a read of the keyboard cannot be interrupted, so it ends with the process
	} else {
		_ = x.send(&nusav1.ExecRequest{StdinClose: true})
	}
	err = receiveExec(c, stream)
	if err != nil && c.Interrupted() {
		return &cli.ExitError{Code: exitInterrupted}
	}
	return err
}

// receiveExec prints the output until the command ends. It returns an exit code other than
// 0 as an ExitError.
func receiveExec(c *cli.Session, stream nusav1.Allocations_ExecClient) error {
	answered := false
	for {
		m, err := stream.Recv()
		if err != nil {
			return execFailure(c, err, answered)
		}
		answered = true
		if _, err := c.Out.Write(m.GetStdout()); err != nil {
			return err
		}
		if _, err := c.Cmd.ErrOrStderr().Write(m.GetStderr()); err != nil {
			return err
		}
		if m.GetExited() {
			if m.GetExitCode() == 0 {
				return nil
			}
			return &cli.ExitError{Code: int(m.GetExitCode())}
		}
	}
}

// execFailure returns the error for a stream that ended before the command ended. answered
// says that a message of the command had arrived.
func execFailure(c *cli.Session, err error, answered bool) error {
	began := answered || cli.ConnectionLost(err) || rpcerr.Is(err, rpcerr.ReasonSessionEnded)
	switch {
	case errors.Is(err, io.EOF):
		err = errors.New("the stream ended before the command did")
	case !cli.MayPass(err) || !began:
		return err
	}
	why := strings.Join(cli.ErrorLines(c.Explain(err)), "; ")
	why = strings.TrimSuffix(strings.TrimSuffix(why, ": try again in a few seconds"), ": try again")
	return &cli.ExitError{Code: exitExecLost, Err: fmt.Errorf("%s: exec cannot continue; the command is killed, and its exit code is not known", why)}
}

// copyInput sends everything that it reads from in, and then the end of the input.
func (x *execSession) copyInput(in io.Reader) {
	buf := make([]byte, maxExecInput)
	for {
		n, err := in.Read(buf)
		if n > 0 && x.send(&nusav1.ExecRequest{Stdin: slices.Clone(buf[:n])}) != nil {
			return
		}
		if err != nil {
			_ = x.send(&nusav1.ExecRequest{StdinClose: true})
			return
		}
	}
}

func terminalSize(f *os.File) *nusav1.TerminalSize {
	columns, rows, err := xterm.GetSize(f.Fd())
	if err != nil || columns < 1 || rows < 1 {
		return nil
	}
	return &nusav1.TerminalSize{Columns: int32(columns), Rows: int32(rows)}
}

// followSize sends the size of the terminal at each change, until the caller calls stop.
func (x *execSession) followSize(f *os.File) (stop func()) {
	changed, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(changed, syscall.SIGWINCH)
	go func() {
		for {
			select {
			case <-changed:
				if size := terminalSize(f); size != nil {
					_ = x.send(&nusav1.ExecRequest{Resize: size})
				}
			case <-done:
				return
			}
		}
	}()
	return func() { signal.Stop(changed); close(done) }
}
