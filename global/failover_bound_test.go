package global

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/lease"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestBoundWorkMovesWhenTheLeaseIsOver: the lease of a region binds its work. The verdict
// comes when every lease of the region, with the stop time, is over by any clock, and not
// before. The longest stop time of the versions that the region may run counts. The job
// is stored directly, so its policy is not checked here.
func TestBoundWorkMovesWhenTheLeaseIsOver(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name string
		slot region.Slot
		want time.Duration // 0 = never
	}{
		{"the present version", region.Slot{Bound: true, StopTime: 5 * s}, 5*s + lease.Over(10*s, 5*s)},
		{"an earlier version has a longer stop time", region.Slot{Bound: true, StopTime: time.Minute}, 5*s + lease.Over(10*s, time.Minute)},
		{"the present version has a longer stop time", region.Slot{Bound: true, StopTime: s}, 5*s + lease.Over(10*s, 5*s)},
		{"an earlier version is not bound", region.Slot{Bound: true, StopTime: 5 * s, Unbound: true}, 0},
		{"stored by an earlier version of the software", region.Slot{Unbound: true}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Duration(0)
			f := newFailoverLoop(t, 3, 0, func() time.Duration { return now })
			putBound(t, f, c.slot)
			connect(f, "r0000", 5*s)
			lost := time.Duration(0)
			for ; now < 3*time.Minute && lost == 0; now += 100 * time.Millisecond {
				f.state.Lock()
				for _, name := range []string{"r0001", "r0002"} {
					f.state.Regions[name].Life.LastSeen = now
				}
				f.state.Unlock()
				if _, err := f.step(context.Background()); err != nil {
					t.Fatal(err)
				}
				f.state.Lock()
				if f.state.Regions["r0000"].Record.GetLost() != nil {
					lost = now
				}
				due := len(f.state.Movable) > 0
				f.state.Unlock()
				if due != (lost != 0) {
					t.Errorf("due %v at %s, lost at %s", due, now, lost)
				}
			}
			if lost < c.want || lost > c.want+100*time.Millisecond {
				t.Errorf("lost after %s, want %s", lost, c.want)
			}
		})
	}
}

// putBound stores a job that the region's lease binds, and its slot at the first region.
func putBound(t *testing.T, f *failoverLoop, s region.Slot) {
	t.Helper()
	spec := testJob("db", 1)
	spec.Namespace = "default"
	g := spec.GetGroups()["web"]
	g.Tasks["server"].KillTimeout = durationpb.New(5 * time.Second)
	g.Disconnect = &nusav1.Disconnect{Region: &nusav1.DisconnectLevel{
		After: durationpb.New(10 * time.Second), Running: nusav1.Running_RUNNING_STOP, Replace: proto.Bool(true),
	}}
	s.Namespace, s.Job, s.Group, s.To, s.Region = "default", "db", "web", 1, "r0000"
	s.State, s.Desired, s.JobVersion, s.Run = region.Accepted, region.DesiredRun, 1, 1
	_, err := f.commit.Do(context.Background(), func(tx *state.Tx) error {
		if err := tx.PutJob(state.KeyOf(spec), &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1, Run: 1}}); err != nil {
			return err
		}
		return tx.ChangeSlots([]region.Change{{Slot: s}})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// connect makes a region say hello at the beginning, and get its last lease at the
// given time.
func connect(f *failoverLoop, name string, last time.Duration) {
	f.state.Lock()
	defer f.state.Unlock()
	r, c := f.state.Regions[name], f.state.SessionConfig()
	for _, e := range []region.Event{
		region.Hello{Stream: 1, ClusterID: name, Incarnation: 1, Term: 1, Level: 1, Acked: 1, Required: 1},
		region.LeaseRequested{Stream: 1, ID: 1, Orders: 1},
	} {
		at := time.Duration(0)
		if _, ok := e.(region.LeaseRequested); ok {
			at = last
		}
		r.Life, _ = region.Step(c, r.Life, at, e)
	}
}
