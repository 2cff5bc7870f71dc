package alloc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxLogged bounds the tasks that are followed at the same time. A node allows no more
	// streams.
	maxLogged = 32
	// readAhead is how many tasks are opened at the same time when they are shown one after
	// the other. Each open takes several round trips to the task's region before the first
	// byte.
	readAhead = 8
	// tailOfEach is how many lines of each stream are shown if an argument names several
	// instances and no flag sets the number.
	tailOfEach = 10
	// maxLine is the number of bytes after which an unfinished line is written as if it
	// were complete.
	maxLine = 64 << 10
)

// logOptions are the flags of `alloc logs` and `job logs`.
type logOptions struct {
	task             string
	follow           bool
	onlyOut, onlyErr bool
	lines            int32
	bytes            int64
}

func logsCommandOfAlloc(s *cli.Settings) *cobra.Command {
	return logsCommand(s, "logs ID|JOB", named, []string{"ID|JOB"}, `
  nusa alloc logs -f 1f3a
  nusa alloc logs hello/greeter/0 --tail 50`)
}

// JobLogsCommand returns the command `nusa job logs`.
func JobLogsCommand(s *cli.Settings) *cobra.Command {
	return logsCommand(s, "logs JOB", named, []string{"JOB"}, `
  nusa job logs hello --tail 50
  nusa job logs -f hello/greeter/0`)
}

// StepLogsCommand returns the command `nusa workflow logs`. resolve returns the job of the step that the
// arguments name.
func StepLogsCommand(s *cli.Settings, resolve func(*cli.Session, []string) (string, error)) *cobra.Command {
	return logsCommand(s, "logs RUN STEP", resolve, []string{"RUN", "STEP"}, `
  nusa workflow logs etl.3f9a01bc train
  nusa workflow logs -f etl.3f9a01bc train`)
}

// named returns the argument itself.
func named(_ *cli.Session, args []string) (string, error) { return args[0], nil }

func logsCommand(s *cli.Settings, use string, resolve func(*cli.Session, []string) (string, error), positional []string, examples string) *cobra.Command {
	o := logOptions{}
	c := &cobra.Command{
		Use: use, Short: "Show what tasks wrote to stdout and stderr", Args: cli.Positional(positional...),
		Long: `Writes a task's stdout to standard output and its stderr to standard error. With
-f it continues until the task ends. After a broken connection, or an election of the
servers, it continues too, and prints a line about the break to standard error. The
lines of several tasks begin with the names of the tasks. Without -f the tasks are shown
one after the other. With -o json or yaml every line is a record.

By default the whole retained output of one instance is shown: that of the two latest
runs of each task. If there are several
instances, the last 10 lines of each stream are shown.

` + instanceNames + `
JOB and JOB/GROUP are all of their instances, JOB/GROUP/INDEX is one. The latest
allocation of an instance is shown, even if it has ended, but not if it was
stopped. -f shows only live allocations, not their later replacements.`,
		Example: strings.TrimPrefix(examples, "\n"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if o.lines < 0 || o.bytes < 0 {
				return errors.New("--tail, --bytes: must not be negative")
			}
			if o.lines > 0 && o.bytes > 0 {
				return errors.New("--tail counts lines and --bytes bytes: give one of them")
			}
			arg, err := resolve(c, args)
			if err != nil {
				return err
			}
			return showLogs(c, arg, o, c.Cmd.Flags().Changed("tail") || o.bytes > 0)
		}),
	}
	f := c.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "continue as output arrives")
	f.StringVar(&o.task, "task", "", "only the logs of this task")
	f.BoolVar(&o.onlyOut, "stdout", false, "only stdout")
	f.BoolVar(&o.onlyErr, "stderr", false, "only stderr")
	f.Int32Var(&o.lines, "tail", 0, fmt.Sprintf("only this many lines from the end of each stream; 0 = all (default 0, or %d for several instances)", tailOfEach))
	f.Int64Var(&o.bytes, "bytes", 0, "only this many bytes from the end of each stream; 0 = all")
	return c
}

// logged is one task whose output is shown.
type logged struct {
	alloc *nusav1.Allocation
	task  string
}

// showLogs shows the logs of the tasks that an argument names. bounded says that a flag
// sets how much of each log is shown.
func showLogs(c *cli.Session, arg string, o logOptions, bounded bool) error {
	ctx, cancel := c.WithTimeout()
	all, n, err := findAllocs(ctx, c, arg, !o.follow)
	cancel()
	if err != nil {
		return err
	}
	if len(all) > 1 && !bounded {
		o.lines = tailOfEach
	}
	var tasks []logged
	for _, a := range all {
		names := slices.Sorted(maps.Keys(a.GetTasks()))
		if o.task != "" || len(names) == 0 {
			names = []string{o.task}
		}
		for _, name := range names {
			tasks = append(tasks, logged{a, name})
		}
	}
	p := &logPrinter{Session: c}
	if len(tasks) == 1 {
		return copyLogs(c.Ctx, c, tasks[0], o, p.to(tasks[0], "", nil), nil)
	}
	if o.follow && len(tasks) > maxLogged {
		return fmt.Errorf("%s has %d tasks, and at most %d are followed at once: say which, %s", n, len(tasks), maxLogged, nameAllocs(c, all))
	}
	return showLogsOfAll(c, tasks, o, p)
}

// showLogsOfAll shows several tasks. With --follow it shows output as it arrives. Otherwise
// it shows one task after the other, and opens the next tasks while it shows one.
func showLogsOfAll(c *cli.Session, tasks []logged, o logOptions, p *logPrinter) error {
	var group errgroup.Group
	if !o.follow {
		group.SetLimit(readAhead)
	}
	heads := headsOf(tasks)
	width := len(slices.MaxFunc(heads, func(a, b string) int { return cmp.Compare(len(a), len(b)) }))
	failed := false
	turn := make(chan struct{}) // closed when the next task may be shown
	close(turn)
	for i, t := range tasks {
		mine, next := turn, make(chan struct{})
		if o.follow {
			next = turn // all tasks are shown at once
		}
		turn = next
		out := p.to(t, fmt.Sprintf("%-*s ", width, heads[i]), mine)
		group.Go(func() error {
			if !o.follow {
				defer close(next)
				defer func() { <-mine }() // a task without output also waits for its turn
			}
			if err := copyLogs(c.Ctx, c, t, o, out, p.tellOnce); err != nil {
				<-mine
				p.mu.Lock()
				defer p.mu.Unlock()
				failed = true
				c.Warn("%s: %s", heads[i], strings.Join(cli.ErrorLines(c.Explain(err)), "; "))
			}
			return nil
		})
	}
	_ = group.Wait() // each task has printed its error
	if failed {
		return &cli.ExitError{Code: cli.ExitFail}
	}
	return nil
}

// headsOf returns the beginning of each task's lines: the instance. If several tasks would
// have the same beginning, the node or the task is added.
func headsOf(tasks []logged) []string {
	several, places := map[string]bool{}, map[string]map[string]bool{}
	for _, t := range tasks {
		several[t.alloc.GetId()] = several[t.alloc.GetId()] || len(t.alloc.GetTasks()) > 1
		at := instance(t.alloc)
		if places[at] == nil {
			places[at] = map[string]bool{}
		}
		places[at][t.alloc.GetId()] = true
	}
	var out []string
	for _, t := range tasks {
		head := instance(t.alloc)
		if len(places[head]) > 1 {
			head += "@" + nodeOf(t.alloc)
		}
		if several[t.alloc.GetId()] && t.task != "" {
			head += "/" + t.task
		}
		out = append(out, head)
	}
	return out
}

// copyLogs writes the output of one task. With --follow it continues after a broken
// connection and after an election of the servers.
func copyLogs(ctx context.Context, c *cli.Session, t logged, o logOptions, to [2]io.Writer, tell func(string)) error {
	defer func() {
		for _, w := range to {
			if l, ok := w.(*lineWriter); ok {
				l.flush()
			}
		}
	}()
	both := o.onlyOut == o.onlyErr
	req := &nusav1.LogsRequest{
		Allocation: t.alloc.GetId(), Task: t.task, Follow: o.follow,
		Stdout: both || o.onlyOut, Stderr: both || o.onlyErr, TailLines: o.lines, TailBytes: o.bytes,
	}
	if !o.follow {
		err := copyLogStream(ctx, c, req, to, func() {})
		if errors.Is(err, io.EOF) || c.Interrupted() {
			return nil
		}
		return err
	}
	var seen [2]*seenOutput
	var resumed [2]io.Writer
	for i := range to {
		seen[i] = &seenOutput{to: to[i]}
		resumed[i] = seen[i]
	}
	r := &cli.Resumed{Session: c, Reached: true, Missed: "lines in between may be missing", Tell: tell, Probe: func(ctx context.Context) error {
		_, err := c.Allocs().Get(ctx, &nusav1.GetAllocationRequest{Id: t.alloc.GetId()})
		return err
	}}
	return r.Follow(ctx, func(answered func()) error {
		if len(seen[0].tail)+len(seen[1].tail) > 0 {
			req.TailLines, req.TailBytes = 0, resumeBytes
			seen[0].resume()
			seen[1].resume()
		}
		return copyLogStream(ctx, c, req, resumed, answered)
	})
}

// copyLogStream writes one stream until the stream ends. The error is io.EOF if the stream
// ended by itself.
func copyLogStream(ctx context.Context, c *cli.Session, req *nusav1.LogsRequest, to [2]io.Writer, answered func()) error {
	stream, err := c.Allocs().Logs(ctx, req)
	if err != nil {
		return err
	}
	for {
		chunk, err := stream.Recv()
		if err != nil {
			return err
		}
		answered()
		w := to[0]
		if chunk.GetStderr() {
			w = to[1]
		}
		if _, err := w.Write(chunk.GetData()); err != nil {
			return err
		}
	}
}
