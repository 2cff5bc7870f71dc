package tasks

import (
	"context"
	"log/slog"
	"time"

	"github.com/nusa-scheduler/nusa/internal/notify"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

const (
	// batchEvents bounds the events of one write: readers wait while memory gets them, about 10 ms.
	batchEvents = 4096
	// writeEvery is the pause after the writes, unless a reader waits. Many events then share one write
	// to the disk. trimEvery is the pause between two removals of old records.
	writeEvery = time.Second
	trimEvery  = time.Minute
	// retryEvery is the pause after a failure of the disk. Each try reads the whole journal, so the pause doubles
	// up to retryMost, unless the disk has worked for longer than that.
	retryEvery = 10 * time.Second
	retryMost  = 2 * time.Minute
	// syncFor bounds how long a reader waits for the events before its request.
	syncFor = 2 * time.Second
	// cachedVersions bounds the versions of jobs whose labels a recorder remembers.
	cachedVersions = 1024
)

// Log is the committed state: *raftlog.FSM.
type Log interface {
	View() *state.View
	// Watch returns the view and a channel that is closed when a newer view exists.
	Watch() (*state.View, <-chan struct{})
}

// Recorder writes the events of a log into a history.
type Recorder struct {
	Log    Log
	Region string
	Store  *Store
	Logger *slog.Logger

	now    func() time.Time // for tests; nil: time.Now
	tail   tail
	nudge  notify.Signal
	abouts map[versionKey]*about
}

type versionKey struct {
	state.JobKey
	version int64
	created uint64
}

// Run writes until ctx ends. A failure of the disk stops nothing but the history.
func (r *Recorder) Run(ctx context.Context) error {
	if r.Store.path == "" {
		<-ctx.Done()
		return nil
	}
	defer r.Store.close("this server stops")
	wait := time.Duration(0)
	for ctx.Err() == nil {
		began := r.clock()
		err := r.Store.open()
		if err == nil {
			err = r.follow(ctx)
		}
		if ctx.Err() != nil || err == nil {
			return nil
		}
		wait = nextRetry(wait, r.clock().Sub(began))
		r.Logger.Warn("the history of tasks cannot be written, and is tried again", "error", err, "pause", wait)
		r.Store.close(err.Error())
		pause(ctx, wait)
	}
	return nil
}

// nextRetry returns the pause after a failure of the disk. before is the last pause, and worked how long the disk
// worked since then.
func nextRetry(before, worked time.Duration) time.Duration {
	if worked > retryMost {
		return retryEvery
	}
	return min(max(2*before, retryEvery), retryMost)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// follow writes events until ctx ends or the disk fails.
func (r *Recorder) follow(ctx context.Context) error {
	trim := time.NewTicker(trimEvery)
	defer trim.Stop()
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	defer func() { stop(); <-done }()
	go func() {
		defer close(done)
		r.tail.follow(ctx, r.Log, r.Store.position().GetEvent())
	}()
	for {
		nudged := r.nudge.C()
		_, changed := r.Log.Watch()
		read, err := r.write(ctx)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if read > 0 {
			rest := time.NewTimer(writeEvery)
			select {
			case <-rest.C:
			case <-nudged:
			case <-ctx.Done():
			}
			rest.Stop()
		}
		copied := r.Store.moved.C() // from now on, only a copy writes
		if now := r.clock(); r.Store.due(now) {
			if err := r.Store.trim(now); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-nudged:
		case <-copied:
		case <-trim.C:
			if err := r.Store.trim(r.clock()); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// write writes all events that wait. It returns how many there were.
func (r *Recorder) write(ctx context.Context) (written int, err error) {
	for ctx.Err() == nil {
		view := r.Log.View()
		cluster := view.Cluster().ID
		if cluster == "" {
			return written, nil // the region has no log yet
		}
		from := source{view, r.Region, r.aboutOf}
		at := r.Store.position()
		var events []numbered
		if at.GetCluster() == cluster {
			events = r.tail.take(at.GetEvent(), batchEvents)
		}
		if len(events) == 0 {
			events, err = r.fromLog(from)
			if err != nil {
				return written, err
			}
		}
		if len(events) == 0 {
			return written, nil
		}
		if err := r.Store.follow(from, events); err != nil {
			return written, err
		}
		written += len(events)
		if now := r.clock(); r.Store.due(now) {
			if err := r.Store.trim(now); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

func (r *Recorder) clock() time.Time {
	if r.now != nil {
		return r.now()
	}
	return time.Now()
}

// fromLog returns the next events that the log has. If some are missing before them, it notes the gap.
func (r *Recorder) fromLog(from source) (events []numbered, err error) {
	if gap := r.Store.gap(from.view); gap != nil {
		if err := r.bridge(from, gap); err != nil {
			return nil, err
		}
	}
	for number, e := range from.view.Events().After(r.Store.position().GetEvent()) {
		if len(events) == batchEvents {
			break
		}
		events = append(events, numbered{number, e})
	}
	return events, nil
}

// bridge completes the history after a gap, and notes the gap.
func (r *Recorder) bridge(from source, gap *nusav1.TaskGap) error {
	if !nothing(gap) {
		r.Logger.Info("the history of tasks has a gap", "from", gap.GetFrom().AsTime(), "to", gap.GetTo().AsTime(), "missed", gap.GetMissed(), "why", gap.GetWhy())
		if err := r.Store.present(from, gap); err != nil {
			return err
		}
	}
	return r.Store.note(from.view.Cluster().ID, gap)
}

// Sync waits until the history has the events that the log has now, at most for syncFor.
func (r *Recorder) Sync(ctx context.Context) {
	want := r.Log.View().Events().Last()
	ctx, cancel := context.WithTimeout(ctx, syncFor)
	defer cancel()
	for {
		moved := r.Store.moved.C()
		if r.Store.position().GetEvent() >= want || !r.Store.isOpen() {
			return
		}
		r.nudge.Notify()
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// aboutOf returns what the records of an allocation's version of a job have in common.
func (r *Recorder) aboutOf(view *state.View, a *state.Alloc) *about {
	name := wire.JobName(a.Job, a.Local, r.Region)
	job, ok := view.Job(a.Key().JobKey(), a.JobVersion)
	if !ok {
		return newAbout(a.Namespace, name, nil)
	}
	key := versionKey{job.Key, job.Version, job.CreateIndex}
	if have, ok := r.abouts[key]; ok {
		return have
	}
	labels, _ := wire.EncodedLabels(job.Spec) // a spec that cannot be read has none
	if r.abouts == nil || len(r.abouts) >= cachedVersions {
		r.abouts = map[versionKey]*about{}
	}
	out := newAbout(a.Namespace, name, labels)
	r.abouts[key] = out
	return out
}
