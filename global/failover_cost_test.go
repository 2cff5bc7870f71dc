package global

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// newFailoverLoop returns a loop over regions. The first region owns jobs of one instance
// each. All other regions are connected.
func newFailoverLoop(t testing.TB, regions, jobs int, clock func() time.Duration) *failoverLoop {
	t.Helper()
	mem := store.NewMemory().Client()
	t.Cleanup(func() { mem.Close() })
	e, err := mem.Campaign(context.Background(), state.ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	st := state.New(state.Beginning{Epoch: "e", Sessions: region.Config{Lease: 10 * time.Second, ActiveUntil: 24 * time.Hour}}, clock)
	commit := state.NewCommitter(st, mem, e.Guard())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = commit.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	put := func(n int, one func(tx *state.Tx, i int) error) {
		for first := 0; first < n; first += 25 {
			if _, err := commit.Do(context.Background(), func(tx *state.Tx) error {
				for i := first; i < min(n, first+25); i++ {
					if err := one(tx, i); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(regions, func(tx *state.Tx, i int) error {
		name := fmt.Sprintf("r%04d", i)
		return tx.PutRegion(name, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}, ClusterId: name})
	})
	put(jobs, func(tx *state.Tx, i int) error {
		spec := &nusav1.JobSpec{Namespace: "default", Name: fmt.Sprintf("job-%05d", i), Groups: map[string]*nusav1.Group{"web": {
			Count:      proto.Int32(1),
			Disconnect: &nusav1.Disconnect{Region: &nusav1.DisconnectLevel{After: durationpb.New(time.Hour), Replace: proto.Bool(true)}},
		}}}
		if err := tx.PutJob(state.KeyOf(spec), &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1, Run: 1}}); err != nil {
			return err
		}
		return tx.ChangeSlots([]region.Change{{Slot: region.Slot{
			Namespace: "default", Job: spec.GetName(), Group: "web", To: 1, Region: "r0000", State: region.Accepted, Desired: region.DesiredRun, JobVersion: 1, Run: 1, Unbound: true,
		}}})
	})
	return &failoverLoop{state: st, commit: commit, wake: func() {}, observe: func(int) {}, log: slog.New(slog.DiscardHandler)}
}

// BenchmarkFailoverSecond is what the loop costs each second: with 1,000 connected regions,
// and while one of them, with 20,000 jobs, is silent.
func BenchmarkFailoverSecond(b *testing.B) {
	for _, silent := range []bool{false, true} {
		b.Run(fmt.Sprintf("silent=%v", silent), func(b *testing.B) {
			now := time.Duration(0)
			f := newFailoverLoop(b, 1000, 20_000, func() time.Duration { return now })
			for b.Loop() {
				now += time.Second
				f.state.Lock()
				for name, r := range f.state.Regions {
					if name != "r0000" || !silent {
						r.Life.LastSeen = now
					}
				}
				f.state.Unlock()
				if _, err := f.step(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
