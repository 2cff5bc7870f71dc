package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

var errCrash = errors.New("the server has ended")

// crashingStore fails each transaction once left is 0.
type crashingStore struct {
	store.Store
	left int
	most int // operations of a transaction
}

func (s *crashingStore) MaxOps() int { return s.most }

func (s *crashingStore) Txn(ctx context.Context, c []store.Compare, ops []store.Op) (int64, error) {
	if s.left == 0 {
		return 0, errCrash
	}
	s.left--
	return s.Store.Txn(ctx, c, ops)
}

// reporter is a region that has summaries of jobs. changed has the position of the latest change of each.
type reporter struct {
	sequence uint64
	most     int // bytes of the message in a summary
	sums     map[string]*nusav1.JobSummary
	changed  map[string]uint64
}

// step changes the summary of a job, or removes it.
func (r *reporter) step(rng *rand.Rand, job string) *nusav1.JobSummary {
	r.sequence++
	r.changed[job] = r.sequence
	if rng.IntN(4) == 0 {
		delete(r.sums, job)
		return nil
	}
	text := strings.Repeat("x", rng.IntN(r.most))
	r.sums[job] = &nusav1.JobSummary{Namespace: "default", Job: job, Index: r.sequence, Reasons: map[string]*nusav1.GroupReasons{"web": {Reasons: []*nusav1.CountedReason{{Message: text}}}}}
	return r.sums[job]
}

// earlier writes the checkpoint of a region as versions of Nusa before CheckpointRecord.up_to did, one record in each
// transaction. Such a version left out a record that was too large, which record 0 was not.
func earlier(ctx context.Context, s store.Store, st *State, r *Region, rng *rand.Rand) error {
	var records []*nusav1.CheckpointRecord
	for i, key := range slices.Sorted(maps.Keys(r.SummaryKeys)) {
		namespace, name, _ := strings.Cut(key, "/")
		if i%50 == 0 {
			records = append(records, &nusav1.CheckpointRecord{})
		}
		if sum := st.Jobs[JobKey{namespace, name}].Summaries.Get(r.Name); sum != nil {
			sum.Namespace, sum.Job = namespace, name
			records[len(records)-1].Summaries = append(records[len(records)-1].Summaries, sum)
		}
	}
	for n, rec := range records {
		if n > 0 && rng.IntN(8) == 0 {
			continue
		}
		rec.Position = &nusav1.Position{Epoch: r.SummariesAt.Epoch, Sequence: r.SummariesAt.Sequence}
		rec.Chunks = int32(len(records))
		value, err := Encode(rec)
		if err != nil {
			return err
		}
		if _, err := s.Txn(ctx, nil, []store.Op{store.Put(CheckpointKey(r.Name, n), value)}); err != nil {
			return err
		}
	}
	for n := len(records); n < len(r.stored.parts); n++ {
		if _, err := s.Txn(ctx, nil, []store.Op{store.Delete(CheckpointKey(r.Name, n))}); err != nil {
			return err
		}
	}
	return nil
}

// TestCheckpointsSurviveCrashes: whenever a server ends between two transactions of a checkpoint, the stored summaries
// are those of the stored position, except those that have changed since. So the region's later changes bring all
// of them up to date. That also holds when servers of an earlier version of Nusa write some of the checkpoints.
func TestCheckpointsSurviveCrashes(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { crashes(t, rand.New(rand.NewPCG(seed, 1)), seed%2 == 1) })
	}
}

func crashes(t *testing.T, rng *rand.Rand, mixed bool) {
	const name, jobs = "oslo", 150
	mem := store.NewMemory().Client()
	t.Cleanup(func() { mem.Close() })
	e, err := mem.Campaign(t.Context(), ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	put := func(key string, m proto.Message) {
		value, err := Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := mem.Txn(t.Context(), nil, []store.Op{store.Put(key, value)}); err != nil {
			t.Fatal(err)
		}
	}
	put(RegionPrefix+name, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}})
	keys := make([]string, jobs)
	for i := range keys {
		keys[i] = fmt.Sprintf("job-%03d", i)
		put(jobPrefix+"default/"+keys[i], &nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob(keys[i], 1), Version: 1}})
	}
	from := &reporter{sums: map[string]*nusav1.JobSummary{}, changed: map[string]uint64{}}
	valid := 0
	for term := range 20 {
		st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
		if err := st.Load(t.Context(), mem); err != nil {
			t.Fatal(err)
		}
		st.Lock()
		r := st.Regions[name]
		checkLoaded(t, st, r, from)
		if r.SummariesAt.Epoch != "" {
			valid++
		}
		catchUp(st, r, from)
		st.Unlock()
		s := &crashingStore{Store: mem, left: rng.IntN(12), most: []int{3, 8, 100}[rng.IntN(3)]}
		if mixed && rng.IntN(2) == 0 {
			if err := earlier(t.Context(), s, st, r, rng); err != nil && !errors.Is(err, errCrash) {
				t.Fatal(err)
			}
			continue
		}
		c := NewCommitter(st, s, e.Guard())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = c.Run(ctx)
		}()
		every := Checkpoints{State: st, Commit: c, Log: slog.New(slog.DiscardHandler)}
		for err = nil; err == nil; err = every.storeAll(ctx) {
			st.Lock()
			if rng.IntN(3) == 0 { // only the report changes
				r.SetReport(&nusav1.RegionReport{NodesReady: rng.Int32()}, 0, false)
				r.ReportDue = true
				st.Unlock()
				continue
			}
			window := rng.IntN(jobs)
			from.most = []int{10, 10, 2500}[rng.IntN(3)]
			for range rng.IntN(jobs) {
				job := keys[min(window+rng.IntN(1+term*10), jobs-1)]
				if sum := from.step(rng, job); sum != nil {
					NoteSummary(st, r, SummaryKey(name, sum), sum)
					st.Jobs[JobKey{"default", job}].Summaries.Put(name, sum)
				} else {
					ForgetSummary(st, r, "default/"+job)
				}
			}
			from.sequence++
			r.SummariesAt, r.CheckpointDue = link.Position{Epoch: "e", Sequence: from.sequence}, true
			st.Unlock()
		}
		if s.left > 0 {
			t.Fatal(err)
		}
		cancel()
		<-done
	}
	if valid < 3 {
		t.Errorf("only %d of 20 positions are valid", valid)
	}
}

// checkLoaded compares the loaded summaries with what the region had at the loaded position.
func checkLoaded(t *testing.T, st *State, r *Region, from *reporter) {
	t.Helper()
	if r.SummariesAt.Epoch == "" {
		return
	}
	for job, at := range from.changed {
		if at > r.SummariesAt.Sequence {
			continue
		}
		want, got := from.sums[job], st.Jobs[JobKey{"default", job}].Summaries.Get(r.Name)
		if _, known := r.SummaryKeys["default/"+job]; known != (want != nil) || got.GetIndex() != want.GetIndex() {
			t.Fatalf("position %v: %s changed at %d, loaded %d, want %d, known %v", r.SummariesAt, job, at, got.GetIndex(), want.GetIndex(), known)
		}
	}
}

// catchUp makes the summaries those that the region has, as its changes after the loaded position do.
func catchUp(st *State, r *Region, from *reporter) {
	for job, at := range from.changed {
		if at <= r.SummariesAt.Sequence {
			continue
		}
		if sum := from.sums[job]; sum != nil {
			NoteSummary(st, r, SummaryKey(r.Name, sum), sum)
			st.Jobs[JobKey{"default", job}].Summaries.Put(r.Name, sum)
		} else {
			ForgetSummary(st, r, "default/"+job)
		}
	}
	r.SummariesAt, r.CheckpointDue = link.Position{Epoch: "e", Sequence: from.sequence}, true
}
