package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// runTimeout is how long job run waits by default.
	runTimeout = 5 * time.Minute
	// redraw is how often the progress line shows the time that passed.
	redraw = 100 * time.Millisecond
	// rewatch is the pause before a broken watch is tried again.
	rewatch = 300 * time.Millisecond
)

func jobRun(s *settings) *cobra.Command {
	var detach bool
	var check int64
	var region, key string
	var timeout time.Duration
	c := &cobra.Command{
		Use: "run FILE", Aliases: []string{"submit"}, Short: "Submit a job and wait until it runs", Args: cobra.ExactArgs(1),
		Long: `Submits a job file (- is standard input) and waits, with a live view, until
every instance runs (service, system) or has completed (batch).

Exit codes: 0 done; 1 error, nothing was changed; 2 accepted, but not placed or
not healthy within --timeout. The job goes on in any case.`,
		Example: "  nusa job run hello.yaml\n  nusa job run --detach - < hello.yaml",
		RunE: s.run(func(c *caller, args []string) error {
			spec, err := readJob(c.cmd, args[0], c.namespace)
			if err != nil {
				return err
			}
			if region != "" {
				done, err := c.redial(region)
				if err != nil {
					return err
				}
				defer done()
			}
			began := time.Now()
			c.timeout = min(timeout, defaultTimeout)
			ctx, cancel := c.call()
			defer cancel()
			resp, err := c.jobs().Submit(ctx, &nusav1.SubmitRequest{Spec: spec, CheckRevision: check, IdempotencyKey: key})
			if err != nil {
				return err
			}
			for _, w := range resp.GetWarnings() {
				fmt.Fprintln(c.cmd.ErrOrStderr(), c.style.wait("warning: ")+oneLine(w))
			}
			ref := &nusav1.JobRef{Namespace: namespaceOf(spec), Name: spec.GetName(), Region: region}
			if detach {
				return c.print(resp, func(w io.Writer) { submitted(w, ref, resp) })
			}
			if c.output == "table" {
				submitted(c.out, ref, resp)
			}
			f := follower{caller: c, ref: ref, version: resp.GetVersion(), batch: spec.GetType() == nusav1.JobType_JOB_TYPE_BATCH, began: began, timeout: timeout}
			return f.wait()
		}),
	}
	f := c.Flags()
	f.BoolVarP(&detach, "detach", "d", false, "do not wait")
	f.Int64Var(&check, "check-revision", 0, "refuse unless the stored job's revision is this (from job plan); -1: unless there is none")
	f.StringVar(&region, "region", "", "submit to this region's own servers: the job is NAME@REGION there")
	f.StringVar(&key, "idempotency-key", "", "a retry with the same key has the same answer")
	f.DurationVar(&timeout, "timeout", runTimeout, "how long to wait until the job runs")
	return c
}

func submitted(w io.Writer, ref *nusav1.JobRef, resp *nusav1.SubmitResponse) {
	what := "submitted"
	if !resp.GetChanged() {
		what = "unchanged"
	}
	fmt.Fprintf(w, "%s %s, version %d (revision %d)\n", refName(ref), what, resp.GetVersion(), resp.GetRevision())
}

func namespaceOf(spec *nusav1.JobSpec) string {
	if ns := spec.GetNamespace(); ns != "" {
		return ns
	}
	return "default"
}

// redial asks where a region's master is and goes on with that one, whose API
// takes the region's own jobs.
func (c *caller) redial(region string) (func(), error) {
	ctx, cancel := c.call()
	defer cancel()
	r, err := c.regions().Get(ctx, &nusav1.GetRegionRequest{Name: region})
	if err != nil {
		return nil, err
	}
	if r.GetMasterAddress() == "" {
		return nil, fmt.Errorf("region %s has no master that is known here: give one of its servers with --addr", region)
	}
	conn, err := dial(r.GetMasterAddress())
	if err != nil {
		return nil, err
	}
	c.conn, c.addr = conn, r.GetMasterAddress()
	return func() { conn.Close() }, nil
}

// follower watches a job until it is where it should be.
type follower struct {
	*caller
	ref     *nusav1.JobRef
	version int64
	batch   bool
	began   time.Time
	timeout time.Duration

	latest *nusav1.Job
	shown  string // the last line, for those without a terminal
}

// watched is one message, or the end, of a watch.
type watched struct {
	job *nusav1.Job
	err error
}

func (f *follower) wait() error {
	ctx, cancel := context.WithTimeout(f.ctx, f.timeout-time.Since(f.began))
	defer cancel()
	updates := make(chan watched)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.watch(ctx, updates)
	}()
	defer func() { cancel(); <-done }()
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	for {
		select {
		case u := <-updates:
			if u.err != nil {
				f.endLine()
				return f.failed(u.err)
			}
			if u.job.GetVersion() < f.version {
				continue // from before the submit
			}
			f.latest = u.job
			f.draw()
			if ended, err := f.ended(); ended {
				return err
			}
		case <-tick.C:
			if f.terminal {
				f.draw()
			}
		case <-ctx.Done():
			f.endLine()
			return f.late()
		}
	}
}

// watch sends updates until ctx ends, and takes a broken stream up again.
func (f *follower) watch(ctx context.Context, to chan<- watched) {
	send := func(u watched) bool {
		select {
		case to <- u:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for {
		stream, err := f.jobs().Watch(ctx, &nusav1.GetJobRequest{Job: f.ref})
		for err == nil {
			var j *nusav1.Job
			if j, err = stream.Recv(); err == nil && !send(watched{job: j}) {
				return
			}
		}
		if !transient(err) && !errors.Is(err, io.EOF) {
			send(watched{err: err})
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(rewatch):
		}
	}
}

// failed: the job was accepted, so what goes wrong now is not its refusal.
func (f *follower) failed(err error) error {
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return f.late()
	case codes.Canceled:
		return f.late()
	case codes.NotFound:
		return fmt.Errorf("%s was purged", refName(f.ref))
	}
	return f.readable(err)
}

// ended says whether the wait is over, and how.
func (f *follower) ended() (bool, error) {
	j := f.latest
	state := j.GetStatus().GetState()
	switch {
	case j.GetVersion() > f.version:
		f.endLine()
		return true, fmt.Errorf("%s was changed by another submit: version %d has replaced %d", refName(f.ref), j.GetVersion(), f.version)
	case j.GetStopped():
		f.endLine()
		return true, fmt.Errorf("%s was stopped", refName(f.ref))
	case state == nusav1.JobState_JOB_STATE_FAILED:
		f.endLine()
		return true, &exitError{exitWaiting, fmt.Errorf("%s failed%s: see nusa job status %s", refName(f.ref), because(j), f.arg())}
	case f.batch && state == nusav1.JobState_JOB_STATE_COMPLETE, !f.batch && state == nusav1.JobState_JOB_STATE_RUNNING && f.current():
		f.endLine()
		return true, f.finish()
	}
	return false, nil
}

// current: every slot runs this version, and no older one still.
func (f *follower) current() bool {
	for _, g := range f.latest.GetStatus().GetGroups() {
		for _, s := range g.GetSlots() {
			if s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_RUN && s.GetJobVersion() < f.version {
				return false
			}
		}
	}
	return true
}

func (f *follower) finish() error {
	return f.print(f.latest, func(w io.Writer) {
		sum, regions := totals(f.latest.GetStatus())
		verb := "is running"
		if f.batch {
			verb = "is complete"
		}
		if regions != "" {
			regions = " (" + regions + ")"
		}
		fmt.Fprintf(w, "%s %s: %s%s after %s\n", refName(f.ref), f.style.good(verb), plural(sum.alive(), "instance"), regions, human(time.Since(f.began)))
	})
}

// late: the time is up, or the user does not wait any longer.
func (f *follower) late() error {
	if f.interrupted() {
		return &exitError{exitWaiting, fmt.Errorf("no longer waiting; %s goes on: nusa job status %s", refName(f.ref), f.arg())}
	}
	state := "its state is not known"
	if f.latest != nil {
		state = "it is " + word(f.latest.GetStatus().GetState()) + because(f.latest)
	}
	return &exitError{exitWaiting, fmt.Errorf("%s was accepted, but after --timeout %s %s: see nusa job explain %s", refName(f.ref), f.timeout, state, f.arg())}
}

// arg is how the job is named in a further command.
func (f *follower) arg() string {
	name := f.ref.GetName()
	if f.ref.GetRegion() != "" {
		name += "@" + f.ref.GetRegion()
	}
	if f.ref.GetNamespace() != "default" {
		name += " -n " + f.ref.GetNamespace()
	}
	return name
}

// because is ": message", or nothing.
func because(j *nusav1.Job) string {
	message := oneLine(j.GetStatus().GetMessage())
	if message == "" {
		if p := pending(j.GetStatus()); p != "" {
			message = p
		}
	}
	if message == "" {
		return ""
	}
	return " (" + message + ")"
}

// draw shows the progress: over the line on a terminal, else a new line when
// something has changed.
func (f *follower) draw() {
	if f.output != "table" || f.latest == nil {
		return
	}
	line := f.view().progress(f.latest)
	elapsed := human(time.Since(f.began))
	if f.terminal {
		// A line that wraps could not be drawn over.
		line = fit(f.style.faint(fmt.Sprintf("%6s", elapsed))+" "+line, terminalWidth(f.out))
		f.printf("\r\x1b[K%s", line)
		return
	}
	if line != f.shown {
		f.shown = line
		f.printf("%6s %s\n", elapsed, line)
	}
}

// endLine leaves the line that is drawn over.
func (f *follower) endLine() {
	if f.terminal && f.output == "table" && f.latest != nil {
		f.printf("\n")
	}
}
