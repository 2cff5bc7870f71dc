package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// timedWatch records the version in each message of a watch, and when the message came.
type timedWatch struct {
	grpc.ServerStream
	ctx   context.Context
	began time.Time
	got   []string
	at    []time.Duration
}

func (w *timedWatch) Context() context.Context { return w.ctx }

func (w *timedWatch) Send(job *nusav1.Job) error {
	at := time.Since(w.began)
	w.got, w.at = append(w.got, fmt.Sprintf("%d at %s", job.GetVersion(), at)), append(w.at, at)
	return nil
}

// watched is a job with a watch.
type watched struct {
	st *state.State
	*timedWatch
}

// set stores another version of a job.
func (w *watched) set(name string, version int64) {
	w.st.Lock()
	defer w.st.Unlock()
	k := state.JobKey{Namespace: "default", Name: name}
	if w.st.Jobs[k] == nil {
		w.st.Jobs[k] = &state.Job{Key: k}
	}
	rec, err := state.NewRecord(&nusav1.JobRecord{Job: &nusav1.Job{Spec: &nusav1.JobSpec{Name: name}, Version: version}})
	if err != nil {
		panic(err)
	}
	w.st.Jobs[k].Record = rec
	w.st.JobChanged(w.st.Jobs[k])
}

// watchJob watches the job "web" of version 1 in virtual time while change runs.
func watchJob(t *testing.T, change func(*watched)) *watched {
	t.Helper()
	w := &watched{st: state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })}
	synctest.Test(t, func(t *testing.T) {
		w.set("web", 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w.timedWatch = &timedWatch{ctx: ctx, began: time.Now()}
		term := NewTerm(TermConfig{Context: t.Context(), State: w.st})
		jobs := &jobsAPI{s: &Services{Current: func() *Term { return term }}}
		ended := make(chan error, 1)
		go func() { ended <- jobs.Watch(&nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "web"}}, w) }()
		synctest.Wait()
		change(w)
		time.Sleep(time.Second)
		cancel()
		if err := <-ended; err != nil && status.Code(err) != codes.Canceled && ctx.Err() == nil {
			t.Errorf("the watch ended with %v", err)
		}
	})
	return w
}

// TestWatchSendsAtOnce: a watch shows each change at once of a job that changes rarely, as a new
// job does. Changes of other jobs do not delay them.
func TestWatchSendsAtOnce(t *testing.T) {
	w := watchJob(t, func(w *watched) {
		for range 1000 {
			w.set("other", 1)
			time.Sleep(time.Millisecond)
		}
		for v := range int64(4) {
			w.set("web", 2+v)
			time.Sleep(2 * time.Millisecond)
		}
		time.Sleep(time.Second)
		w.set("web", 6)
	})
	want := []string{"1 at 0s", "2 at 1s", "3 at 1.002s", "4 at 1.004s", "5 at 1.006s", "6 at 2.008s"}
	if !slices.Equal(w.got, want) {
		t.Errorf("messages: %v, want %v", w.got, want)
	}
}

// TestWatchOfBusyJob: a job that changes all the time costs a bounded number of messages, and
// the last change is shown soon.
func TestWatchOfBusyJob(t *testing.T) {
	const changes = 5000
	w := watchJob(t, func(w *watched) {
		for v := range int64(changes) {
			w.set("web", 2+v)
			time.Sleep(time.Millisecond)
		}
	})
	if n := len(w.got); n < changes/100 || n > changes/100+watchBurst+1 {
		t.Errorf("%d messages about %d changes in 5 s", n, changes)
	}
	for i := watchBurst + 1; i < len(w.at); i++ {
		if d := w.at[i] - w.at[i-1]; d < watchPause-2*time.Millisecond {
			t.Errorf("message %d comes %s after the one before", i, d)
		}
	}
	if last := w.at[len(w.at)-1]; last > 5*time.Second+watchPause || w.got[len(w.got)-1] != fmt.Sprintf("%d at %s", changes+1, last) {
		t.Errorf("the last message is %s", w.got[len(w.got)-1])
	}
}

// TestWatchShowsThePlaceInTheQueue: a watch of a job that waits for a region shows when its place changes, although the
// job does not change: within placesPause and the age of the shared places, and not more often than that.
func TestWatchShowsThePlaceInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return time.Since(began) })
		put := func(name string, priority int32, revision int64) {
			st.Lock()
			defer st.Unlock()
			spec := nightly(name)
			spec.Schedule, spec.Priority, spec.Groups["main"].Count = nil, &priority, proto.Int32(2)
			rec, err := state.NewRecord(&nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1}})
			if err != nil {
				t.Fatal(err)
			}
			k := state.JobKey{Namespace: "default", Name: name}
			st.Jobs[k] = &state.Job{Key: k, Record: rec, Revision: revision}
			st.Pend(k)
		}
		put("web", 50, 7)
		ctx, cancel := context.WithCancel(t.Context())
		w := &placesWatch{ctx: ctx, began: began}
		term := NewTerm(TermConfig{Context: t.Context(), State: st})
		ended := make(chan error, 1)
		go func() {
			ended <- (&jobsAPI{s: &Services{Current: func() *Term { return term }}}).Watch(&nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "web"}}, w)
		}()
		time.Sleep(10550 * time.Millisecond)
		for n := range 40 { // a new job before it each 100 ms
			put(fmt.Sprint("high-", n), 90, int64(10+n))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		cancel()
		<-ended
		want := []string{"0s: 1 of 1", "12s: 16 of 16", "14s: 36 of 36", "16s: 41 of 41"}
		if !slices.Equal(w.got, want) {
			t.Errorf("places %v, want %v", w.got, want)
		}
	})
}

// placesWatch records the places in the messages of a watch, and when they came.
type placesWatch struct {
	grpc.ServerStream
	ctx   context.Context
	began time.Time
	got   []string
}

func (w *placesWatch) Context() context.Context { return w.ctx }

func (w *placesWatch) Send(job *nusav1.Job) error {
	p := job.GetStatus().GetGroups()["main"].GetGlobalQueue()
	w.got = append(w.got, fmt.Sprintf("%s: %d of %d", time.Since(w.began), p.GetPosition(), p.GetGroups()))
	return nil
}

// nightly returns a job with a schedule.
func nightly(name string) *nusav1.JobSpec {
	return &nusav1.JobSpec{
		Name: name, Schedule: &nusav1.Schedule{Cron: []string{"30 2 * * *"}},
		Groups: map[string]*nusav1.Group{"main": {Tasks: map[string]*nusav1.Task{"main": {
			Driver: "process", Config: &structpb.Struct{Fields: map[string]*structpb.Value{"command": structpb.NewStringValue("/bin/true")}},
		}}}},
	}
}

// TestSchedulesNeedTheLevel: an earlier server would run a job with a schedule itself.
func TestSchedulesNeedTheLevel(t *testing.T) {
	term := NewTerm(TermConfig{State: state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })})
	for level, want := range map[uint32]string{state.TemplateLevel - 1: "upgrade them first", state.TemplateLevel: ""} {
		term.State.GlobalLevel = level
		err := checkSpec(term, nightly("nightly"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("level %d: %v", level, err)
		}
	}
}

// TestLongNameOfAKnownSpec: the check of a spec is kept without the name, but the name of a job that begins
// runs must be short.
func TestLongNameOfAKnownSpec(t *testing.T) {
	term := NewTerm(TermConfig{State: state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })})
	term.State.GlobalLevel = state.TemplateLevel
	for _, c := range []struct {
		length int
		want   string
	}{{40, ""}, {41, "the limit is 40"}, {40, ""}} {
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(nightly(strings.Repeat("n", c.length)))
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = term.spec(raw)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d characters: %v", c.length, err)
		}
	}
}

// TestKnownSpecIsCheckedOnceForNewForms: a spec with a plugin is checked again after the regions' forms have changed, and
// not at each submit from then on.
func TestKnownSpecIsCheckedOnceForNewForms(t *testing.T) {
	term := NewTerm(TermConfig{State: state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })})
	spec := nightly("vm")
	spec.Schedule = nil
	for _, task := range spec.Groups["main"].Tasks {
		task.Driver = "vm"
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	for n, forms := range []*nusav1.DriverForms{nil, {}, {Drivers: []*nusav1.DriverForm{{Driver: "other", Any: true}}}} {
		if forms != nil {
			term.State.Forms.Set("oslo", forms)
		}
		for range 2 {
			_, checked, err := term.spec(raw)
			if err != nil {
				t.Fatal(err)
			}
			if term.newForms(checked) {
				t.Errorf("the forms have changed %d times: the next submit is checked again", n)
			}
		}
	}
}

func TestScheduleThatIsOver(t *testing.T) {
	for end, want := range map[string]int{"2020-01-01": 1, "2399-01-01": 0, "": 0} {
		s := nightly("nightly").Schedule
		s.End = end
		if got := overWarning(s); len(got) != want {
			t.Errorf("end %q: %v", end, got)
		}
	}
	if got := overWarning(nil); got != nil {
		t.Errorf("no schedule: %v", got)
	}
}
