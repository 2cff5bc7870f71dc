package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// redrawEvery is how often the progress line is written again with the elapsed time.
	redrawEvery = 100 * time.Millisecond
	// revertWithin is how long a wait goes on after a version has failed that the servers may take back: they store
	// the failure first.
	revertWithin = 5 * time.Second
)

// waiter watches a submitted job until the job is running, has completed or has failed.
type waiter struct {
	*cli.Session
	ref     *nusav1.JobRef
	version int64
	batch   bool
	// template: the job begins runs, and nothing of it runs itself.
	template bool
	began    time.Time
	timeout  time.Duration
	// since is the revision of a submit that started another run. A status with an earlier
	// revision belongs to the previous run.
	since int64
	// unchanged says that the submit changed nothing. The job may then have ended long ago.
	unchanged bool
	// warnings are all warnings of the submit.
	warnings []string
	// held are warnings that are shown unless the job had ended before the submit.
	held []string
	file string
	// several: the output has the results of several jobs.
	several bool
	// only: the command submitted nothing, so the job was not accepted just now.
	only bool
	// stopping: the job has to stop instead of run. purged: it is then deleted.
	stopping, purged bool

	latest       *nusav1.Job
	latestAt     time.Time
	already      bool   // the job had ended when the watch began
	driverHinted bool   // the hint about a missing driver was printed
	shown        string // the last printed line without ages, if there is no terminal
	pause        string // the region that follows after a pause, if that was printed
	// upSince is since when every instance runs; zero: not every instance does. failedSince is since when the version has
	// failed, if the servers may take it back.
	upSince, failedSince time.Time
}

// watchUpdate is one of three: a message of a watch, the error that ended the watch, or a
// line about the connection.
type watchUpdate struct {
	job  *nusav1.Job
	err  error
	note string
}

func (f *waiter) wait() error {
	ctx, cancel := context.WithTimeout(f.Ctx, f.timeout-time.Since(f.began))
	defer cancel()
	updates := make(chan watchUpdate)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.watch(ctx, updates)
	}()
	defer func() { cancel(); <-done }()
	tick := time.NewTicker(redrawEvery)
	defer tick.Stop()
	for {
		select {
		case u := <-updates:
			switch {
			case u.err != nil:
				f.endLine()
				return f.failed(u.err)
			case u.note != "":
				f.endLine()
				f.Warn("%s", u.note)
				continue
			}
			if u.job.GetVersion() < f.version || u.job.GetRevision() < f.since {
				continue // the status is older than the submit
			}
			f.receive(u.job)
			if ended, err := f.ended(); ended {
				return err
			}
		case <-tick.C:
			if f.Terminal {
				f.draw()
			}
			if !f.upSince.IsZero() || !f.failedSince.IsZero() {
				if ended, err := f.ended(); ended {
					return err
				}
			}
		case <-ctx.Done():
			f.endLine()
			return f.late()
		}
	}
}

// receive stores an update and shows it.
func (f *waiter) receive(j *nusav1.Job) {
	if f.latest == nil {
		state := j.GetStatus().GetState()
		f.already = f.unchanged && f.batch && (state == nusav1.JobState_JOB_STATE_COMPLETE || state == nusav1.JobState_JOB_STATE_FAILED)
		if !f.already {
			cli.PrintWarnings(f.Session, f.held)
		}
	}
	f.latest, f.latestAt = j, time.Now()
	if j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_FAILED {
		f.failedSince = time.Time{} // another failure may be taken back, too
	}
	if name := driverOfNoRegion(j); name != "" && !f.driverHinted {
		f.endLine()
		f.driverHinted = true
		cli.PrintWarnings(f.Session, []string{driverHint(name, f.file)})
	}
	next := afterPause(j.GetStatus().GetRollout())
	if f.Output == "table" && next != "" && next != f.pause {
		f.endLine()
		f.Printf("%6s %s\n", term.Duration(time.Since(f.began)), pauseText(f.Screen(), j.GetStatus().GetRollout()))
	}
	f.pause = next
	f.draw()
}

// afterPause returns the region that gets a version after the pause of its rollout; "": there is no pause.
func afterPause(r *nusav1.Rollout) string {
	if r.GetPauseLeft() == nil || r.GetState() != nusav1.RolloutState_ROLLOUT_STATE_RUNNING {
		return ""
	}
	for _, name := range byTurn(r.GetRegions()) {
		if at := r.GetRegions()[name]; at.GetWaits() != "" && at.GetEnded() == nil {
			return name
		}
	}
	return ""
}

// pauseText says which region gets a version after the pause of its rollout, and when.
func pauseText(w *term.Screen, r *nusav1.Rollout) string {
	left := r.GetPauseLeft().AsDuration()
	return fmt.Sprintf("version %d: %s follows after a pause, in %s, at %s", r.GetVersion(), afterPause(r), term.Duration(left), w.Now.Add(left).Format("15:04:05 MST"))
}

// driverHint says how to start agents with a driver that no node has.
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
	return fmt.Sprintf("no node of the federation has the driver %s that %s asks for, so it waits (%s)", name, cli.FileArg(file), how)
}

// watch sends updates until ctx ends. When a stream breaks, watch opens another one.
func (f *waiter) watch(ctx context.Context, to chan<- watchUpdate) {
	send := func(u watchUpdate) bool {
		select {
		case to <- u:
			return true
		case <-ctx.Done():
			return false
		}
	}
	r := &cli.Resumed{Session: f.Session, Reached: true, Tell: func(text string) { send(watchUpdate{note: text}) }}
	err := r.Follow(ctx, func(answered func()) error {
		stream, err := f.Jobs().Watch(ctx, &nusav1.GetJobRequest{Job: f.ref})
		if err != nil {
			return err
		}
		for {
			j, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF): // the job was purged, or the server ends
				if _, err := f.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: f.ref}); err != nil {
					return err
				}
				return status.Error(codes.Unavailable, "the server ended the stream")
			case err != nil:
				return err
			}
			answered()
			if !send(watchUpdate{job: j}) {
				return ctx.Err()
			}
		}
	})
	if err != nil {
		send(watchUpdate{err: err})
	}
}

// failed returns the error of a watch that cannot continue. The job itself was accepted.
func (f *waiter) failed(err error) error {
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return f.late()
	case codes.Canceled:
		return f.late()
	case codes.NotFound:
		if f.stopping {
			return f.stopped()
		}
		return fmt.Errorf("%s was purged", cli.RefName(f.ref))
	}
	return f.Explain(err)
}

// ended reports whether the wait has ended, and returns its result.
func (f *waiter) ended() (bool, error) {
	j := f.latest
	state := j.GetStatus().GetState()
	switch {
	case f.stopping && state == nusav1.JobState_JOB_STATE_STOPPED:
		f.endLine()
		return true, f.stopped()
	case f.stopping && j.GetStopped():
		return false, nil
	case f.stopping:
		f.endLine()
		return true, fmt.Errorf("%s was submitted again", cli.RefName(f.ref))
	case j.GetReverted().GetVersion() == f.version && f.version > 0:
		f.endLine()
		return true, &cli.ExitError{Code: cli.ExitReverted, Err: fmt.Errorf("%s: %s: see %s job status %s", cli.RefName(f.ref), revertedText(j), f.Program, f.arg())}
	case j.GetVersion() > f.version:
		f.endLine()
		return true, fmt.Errorf("%s was changed by another submit: version %d has replaced %d", cli.RefName(f.ref), j.GetVersion(), f.version)
	case j.GetStopped():
		f.endLine()
		return true, fmt.Errorf("%s was stopped", cli.RefName(f.ref))
	case state == nusav1.JobState_JOB_STATE_FAILED && f.mayBeReverted():
		return false, nil
	case state == nusav1.JobState_JOB_STATE_FAILED:
		f.endLine()
		next := fmt.Sprintf("see %s job status %s", f.Program, f.arg())
		if f.already {
			next += ", run it again with " + f.again()
		}
		if err := f.asItIs(); err != nil {
			return true, err
		}
		return true, &cli.ExitError{Code: cli.ExitFailed, Err: fmt.Errorf("%s failed%s: %s", cli.RefName(f.ref), because(j), next)}
	case j.GetStatus().GetRollout().GetAwaitsPromotion():
		f.endLine()
		if f.Output != "table" {
			return true, f.asItIs()
		}
		f.Printf("the canaries of version %d are healthy: continue with %s job promote %s, or end it with %s job fail %s\n",
			j.GetStatus().GetRollout().GetVersion(), f.Program, f.arg(), f.Program, f.arg())
		return true, nil
	case !f.current(), !f.batch && !f.upLongEnough():
		return false, nil
	case f.batch && state == nusav1.JobState_JOB_STATE_COMPLETE, !f.batch && state == nusav1.JobState_JOB_STATE_RUNNING:
		f.endLine()
		return true, f.finish()
	}
	return false, nil
}

// mayBeReverted reports whether the servers may still take a failed version back to an earlier one.
func (f *waiter) mayBeReverted() bool {
	reverts := false
	for _, g := range f.latest.GetSpec().GetGroups() {
		reverts = reverts || job.AutoRevert(g)
	}
	if f.batch || f.already || f.latest.GetVersion() < 2 || !reverts {
		return false
	}
	if f.failedSince.IsZero() {
		f.failedSince = time.Now()
	}
	return time.Since(f.failedSince) < revertWithin
}

// revertedText says that the version of a job is the result of a failed rollout, for example "version
// 3 failed: taken back to version 2, as version 4: 1 of 3 instances failed".
func revertedText(j *nusav1.Job) string {
	r := j.GetReverted()
	text := fmt.Sprintf("version %d failed: taken back to version %d, as version %d", r.GetVersion(), r.GetTo(), j.GetVersion())
	if why := strings.TrimPrefix(r.GetWhy(), fmt.Sprintf("version %d failed: ", r.GetVersion())); why != "" {
		text += ": " + term.OneLine(why)
	}
	return text
}

// upLongEnough reports whether every instance has run without a break for update.min_healthy, 2 s by
// default. A service that ends right after its start is not reported as running. The servers count
// the first attempt of an instance as running at once.
func (f *waiter) upLongEnough() bool {
	if f.latest.GetStatus().GetState() != nusav1.JobState_JOB_STATE_RUNNING {
		f.upSince = time.Time{}
		return false
	}
	if f.upSince.IsZero() {
		f.upSince = time.Now()
	}
	least := time.Duration(0)
	for name, g := range f.latest.GetSpec().GetGroups() {
		if f.latest.GetStatus().GetGroups()[name].GetDesired() > 0 {
			least = max(least, job.MinHealthy(g, true))
		}
	}
	return f.unchanged || time.Since(f.upSince) >= least
}

// current reports whether every slot and instance has the submitted version, and no surplus
// instance is left.
func (f *waiter) current() bool {
	for _, g := range f.latest.GetStatus().GetGroups() {
		c := g.GetCounts()
		if c.GetOutdated()+c.GetStopping() > 0 || c.GetStarting()+c.GetRunning() > g.GetDesired() {
			return false
		}
		for _, s := range g.GetSlots() {
			if beingRemoved(s) || s.GetJobVersion() < f.version {
				return false
			}
		}
	}
	return true
}

// asItIs prints the job and the warnings of the submit as JSON or YAML, regardless of how
// the wait ended. For -o table it prints nothing.
func (f *waiter) asItIs() error {
	if f.Output == "name" {
		f.Printf("%s\n", cli.RefName(f.ref))
	}
	if f.Output == "table" || f.Output == "name" || f.latest == nil {
		return nil
	}
	n, err := cli.MessageTree(f.latest)
	if err != nil {
		return err
	}
	if len(f.warnings) > 0 {
		all := &doc.Node{Kind: doc.List}
		for _, w := range f.warnings {
			all.Items = append(all.Items, &doc.Node{Kind: doc.String, Text: w})
		}
		n.Add("warnings", all)
	}
	if f.several && f.Output == "yaml" {
		f.Printf("---\n")
	}
	return f.PrintTree(n)
}

// stopped prints that the job has stopped.
func (f *waiter) stopped() error {
	if f.Output != "table" {
		return f.asItIs()
	}
	is := "has stopped"
	if f.purged {
		is = "has stopped and is deleted"
	}
	f.Printf("%s %s after %s\n", cli.RefName(f.ref), is, term.Duration(time.Since(f.began)))
	return nil
}

func (f *waiter) finish() error {
	if f.Output != "table" {
		return f.asItIs()
	}
	if f.template {
		next := term.OneLine(f.latest.GetStatus().GetMessage())
		if next == "" { // a job without a schedule has no next time
			next = "begin a run with: " + beginText(f.Session, f.latest.GetSpec(), f.ref)
		}
		f.Printf("%s is %s: %s\n", cli.RefName(f.ref), f.Style.Good("ready"), next)
		return nil
	}
	sum, regions := totalsOf(f.latest.GetStatus())
	verb := "is running"
	if f.batch {
		verb = "is complete"
	}
	if regions != "" {
		regions = " (" + regions + ")"
	}
	what := term.Plural(sum.runningOrComplete(), "instance") + regions
	if f.already {
		f.Printf("%s had completed already: %s; run it again with %s\n", cli.RefName(f.ref), what, f.again())
		return nil
	}
	line := fmt.Sprintf("%s %s: %s after %s", cli.RefName(f.ref), f.Style.Good(verb), what, term.Duration(time.Since(f.began)))
	if m := term.OneLine(f.latest.GetStatus().GetMessage()); m != "" {
		line += "; " + m
	}
	f.Printf("%s\n", line)
	return nil
}

// again returns the command that runs an ended job again.
func (f *waiter) again() string {
	if f.only {
		return f.Program + " job run --again FILE"
	}
	command := f.Program + " job run --again"
	if f.ref.GetRegion() != "" {
		command += " --region " + f.ref.GetRegion()
	}
	return command + f.NamespaceFlag() + " " + cli.FileArg(f.file)
}

// late returns the error for a wait that timed out or that the user ended.
func (f *waiter) late() error {
	if err := f.asItIs(); err != nil {
		return err
	}
	if f.Interrupted() {
		return &cli.ExitError{Code: cli.ExitWaiting, Err: fmt.Errorf("no longer waiting; %s continues: %s job status %s", cli.RefName(f.ref), f.Program, f.arg())}
	}
	state := "its state is unknown"
	if f.latest != nil {
		state = "it is " + stateText(f.latest.GetStatus())
		if stateText(f.latest.GetStatus()) == partial {
			state = "it runs only in part"
		}
		state += because(f.now())
	}
	verb := "explain"
	if sum, _ := totalsOf(f.latest.GetStatus()); sum.Stopping+sum.Unknown > 0 || sum.Starting > 0 && sum.Pending+sum.unowned == 0 || retriesFailures(f.latest.GetStatus()) {
		verb = "status"
	}
	was := " was accepted, but"
	if f.only || f.stopping {
		was = ":"
	}
	return &cli.ExitError{Code: cli.ExitWaiting, Err: fmt.Errorf("%s%s after --timeout %s %s: see %s job %s %s", cli.RefName(f.ref), was, f.timeout, state, f.Program, verb, f.arg())}
}

// now returns the latest status with its ages at the present time.
func (f *waiter) now() *nusav1.Job { return aged(f.latest, time.Since(f.latestAt)) }

// arg returns the name of the job in a suggested command.
func (f *waiter) arg() string { return cli.RefArg(f.ref) }

// draw shows the progress. On a terminal it overwrites the line. Otherwise it writes a new
// line if the text has changed.
func (f *waiter) draw() {
	if f.Output != "table" || f.latest == nil {
		return
	}
	line := progressLine(f.Screen(), f.now())
	elapsed := term.Duration(time.Since(f.began))
	if f.Terminal {
		// A line that wraps could not be overwritten.
		line = term.Fit(f.Style.Faint(fmt.Sprintf("%6s", elapsed))+" "+line, term.TerminalWidth(f.Out))
		f.Printf("\r\x1b[K%s", line)
		return
	}
	if same := progressLine(f.Screen(), ageless(f.latest)); same != f.shown {
		f.shown = same
		f.Printf("%6s %s\n", elapsed, line)
	}
}

// endLine ends the line that draw overwrites.
func (f *waiter) endLine() {
	if f.Terminal && f.Output == "table" && f.latest != nil {
		f.Printf("\n")
	}
}
