package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// redraw is how often the progress line shows the time that passed.
	redraw = 100 * time.Millisecond
	// rewatch is the pause before a broken watch is tried again.
	rewatch = 300 * time.Millisecond
)

// follower watches a job until it is where it should be.
type follower struct {
	*caller
	ref     *nusav1.JobRef
	version int64
	batch   bool
	began   time.Time
	timeout time.Duration
	// since is the revision of the submit when that began another run: older
	// status is of the run before.
	since int64
	// unchanged: the submit changed nothing, so that the job may have ended
	// long ago.
	unchanged bool
	// told are all warnings of the submit.
	told []string
	// held warnings are shown unless the job has ended already: then the wait
	// says better what to do.
	held []string
	file string

	latest  *nusav1.Job
	already bool   // it had ended when the watch began
	hinted  bool   // that no node has the driver
	shown   string // the last line, for those without a terminal
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
			if u.job.GetVersion() < f.version || u.job.GetRevision() < f.since {
				continue // from before the submit
			}
			f.take(u.job)
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

// take shows an update.
func (f *follower) take(j *nusav1.Job) {
	if f.latest == nil {
		state := j.GetStatus().GetState()
		f.already = f.unchanged && f.batch && (state == nusav1.JobState_JOB_STATE_COMPLETE || state == nusav1.JobState_JOB_STATE_FAILED)
		if !f.already {
			f.warnings(f.held)
		}
	}
	f.latest = j
	if name := driverNowhere(j.GetStatus()); name != "" && !f.hinted {
		f.endLine()
		f.hinted = true
		f.warnings([]string{driverHint(name, f.file)})
	}
	f.draw()
}

// driverHint is what to do about a driver that no node has.
func driverHint(name, file string) string {
	how := fmt.Sprintf("a plugin: start agents with --plugin %s=PATH", name)
	switch name {
	case "docker":
		how = "start agents where a Docker engine is, or with --docker-host"
	case "incus":
		how = "start agents where an Incus daemon is, or with --incus"
	case "process":
		how = "it is not healthy there, see node status"
	}
	return fmt.Sprintf("no node of the federation has the driver %s that %s asks for, so it waits (%s)", name, fileArg(file), how)
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
	case j.GetReverted().GetVersion() == f.version && f.version > 0:
		f.endLine()
		return true, &exitError{exitFailed, fmt.Errorf("%s was taken back, version %d is as version %d was: %s: see %s job status %s", refName(f.ref), j.GetVersion(), j.GetReverted().GetTo(), j.GetReverted().GetWhy(), f.nusa, f.arg())}
	case j.GetVersion() > f.version:
		f.endLine()
		return true, fmt.Errorf("%s was changed by another submit: version %d has replaced %d", refName(f.ref), j.GetVersion(), f.version)
	case j.GetStopped():
		f.endLine()
		return true, fmt.Errorf("%s was stopped", refName(f.ref))
	case state == nusav1.JobState_JOB_STATE_FAILED:
		f.endLine()
		next := fmt.Sprintf("see %s job status %s", f.nusa, f.arg())
		if f.already {
			next += ", run it again with " + f.again()
		}
		if err := f.asItIs(); err != nil {
			return true, err
		}
		return true, &exitError{exitFailed, fmt.Errorf("%s failed%s: %s", refName(f.ref), because(j), next)}
	case !f.current():
		return false, nil
	case f.batch && state == nusav1.JobState_JOB_STATE_COMPLETE, !f.batch && state == nusav1.JobState_JOB_STATE_RUNNING:
		f.endLine()
		return true, f.finish()
	}
	return false, nil
}

// current: every slot and every instance is of this version, none of an older
// one, and nothing is there that is not wanted.
func (f *follower) current() bool {
	for _, g := range f.latest.GetStatus().GetGroups() {
		c := g.GetCounts()
		if c.GetOutdated()+c.GetStopping() > 0 || c.GetStarting()+c.GetRunning() > g.GetDesired() {
			return false
		}
		for _, s := range g.GetSlots() {
			if unwanted(s) || s.GetJobVersion() < f.version {
				return false
			}
		}
	}
	return true
}

// asItIs prints the job where what is printed is for programs: they get it, and
// what its author should know, however the wait ends.
func (f *follower) asItIs() error {
	if f.output == "table" || f.latest == nil {
		return nil
	}
	n, err := messageTree(f.latest)
	if err != nil {
		return err
	}
	if len(f.told) > 0 {
		all := &doc.Node{Kind: doc.List}
		for _, w := range f.told {
			all.Items = append(all.Items, &doc.Node{Kind: doc.String, Text: w})
		}
		n.Add("warnings", all)
	}
	return f.printTree(n)
}

func (f *follower) finish() error {
	if f.output != "table" {
		return f.asItIs()
	}
	sum, regions := totals(f.latest.GetStatus())
	verb := "is running"
	if f.batch {
		verb = "is complete"
	}
	if regions != "" {
		regions = " (" + regions + ")"
	}
	what := plural(sum.alive(), "instance") + regions
	if f.already {
		f.printf("%s had completed already: %s; run it again with %s\n", refName(f.ref), what, f.again())
		return nil
	}
	line := fmt.Sprintf("%s %s: %s after %s", refName(f.ref), f.style.good(verb), what, human(time.Since(f.began)))
	if m := plain(f.latest.GetStatus().GetMessage()); m != "" {
		line += "; " + m
	}
	f.printf("%s\n", line)
	return nil
}

// again is the command that runs an ended job once more.
func (f *follower) again() string {
	command := f.nusa + " job run --again"
	if f.ref.GetRegion() != "" {
		command += " --region " + f.ref.GetRegion()
	}
	return command + f.namespaceFlag() + " " + fileArg(f.file)
}

// late: the time is up, or the user does not wait any longer.
func (f *follower) late() error {
	if err := f.asItIs(); err != nil {
		return err
	}
	if f.interrupted() {
		return &exitError{exitWaiting, fmt.Errorf("no longer waiting; %s goes on: %s job status %s", refName(f.ref), f.nusa, f.arg())}
	}
	state := "its state is not known"
	if f.latest != nil {
		state = "it is " + word(f.latest.GetStatus().GetState()) + because(f.latest)
	}
	verb := "explain"
	if sum, _ := totals(f.latest.GetStatus()); sum.Stopping > 0 || sum.Starting > 0 && sum.Pending+sum.unowned == 0 || failing(f.latest.GetStatus()) {
		verb = "status"
	}
	return &exitError{exitWaiting, fmt.Errorf("%s was accepted, but after --timeout %s %s: see %s job %s %s", refName(f.ref), f.timeout, state, f.nusa, verb, f.arg())}
}

// arg is how the job is named in a further command.
func (f *follower) arg() string { return refArg(f.ref) }

// because is " (message)", or nothing.
func because(j *nusav1.Job) string {
	message := plain(j.GetStatus().GetMessage())
	if message == "" {
		sum, _ := totals(j.GetStatus())
		message = sum.rollout()
	}
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

// goOn follows streams, one after the other, until one ends by itself or the user
// ends it: when a connection breaks there is another. follow goes on where the one
// before was, and calls answered at each message. That no server is there at
// first is an error.
func (c *caller) goOn(follow func(answered func()) error) error {
	reached, told := false, false
	for {
		err := follow(func() { told = false })
		cause := plain(status.Convert(err).Message())
		_, broken := dialing(cause)
		reached = reached || !broken || lost(err)
		switch {
		case errors.Is(err, io.EOF), c.interrupted():
			return nil
		case !transient(err) || !reached:
			return err
		case told:
		case broken:
			c.warn("the connection to %s was lost: going on as soon as it is back", c.addr)
		default:
			c.warn("%s: going on as soon as that is over", cause)
		}
		told = true
		select {
		case <-c.ctx.Done():
			return nil
		case <-time.After(rewatch):
		}
	}
}
