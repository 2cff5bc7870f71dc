package placer

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/queue"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// queueChunk bounds the jobs that are read while the lock is held once.
	queueChunk = 2048
	// queueFor is how long the places of many jobs count.
	queueFor = time.Second
)

// Queue has the places of the groups that wait for a region. It reads the pending jobs when it is asked,
// at most once in queueFor if there are more than queueChunk of them.
type Queue struct {
	mu     sync.Mutex
	at     time.Duration
	places Places
}

// Places are the places of all groups that wait. They never change.
type Places map[groupKey]queue.Place

type groupKey struct {
	state.JobKey
	group string
}

// Read returns the present places.
func (q *Queue) Read(st *state.State) Places { return q.read(st, false) }

// Recent returns the places of at most queueFor ago. Many watches share one look at the pending jobs.
func (q *Queue) Recent(st *state.State) Places { return q.read(st, true) }

func (q *Queue) read(st *state.State, recent bool) Places {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := st.Clock()
	if q.places == nil || now-q.at >= queueFor || !recent && len(q.places) <= queueChunk {
		q.places, q.at = places(st), now
	}
	return q.places
}

// AddTo adds the places to the status of jobs. It reads the queue only if an instance waits.
func (q *Queue) AddTo(st *state.State, jobs ...*nusav1.Job) {
	var all Places
	for _, j := range jobs {
		for name, g := range j.GetStatus().GetGroups() {
			if g.GetUnowned() == 0 {
				continue
			}
			if all == nil {
				all = q.Read(st)
			}
			g.GlobalQueue = all.Of(state.KeyOf(j.GetSpec()), name)
		}
	}
}

// Of returns the place of a group, or nil if it does not wait.
func (all Places) Of(k state.JobKey, group string) *nusav1.QueuePlace {
	p, waits := all[groupKey{k, group}]
	if !waits {
		return nil
	}
	return &nusav1.QueuePlace{
		Position: p.Position, Groups: int32(len(all)), Higher: p.Higher, Earlier: p.Earlier,
		Asked: &nusav1.Resources{CpuMilli: p.Asked.CPUMilli, MemoryBytes: p.Asked.MemoryBytes, DiskBytes: p.Asked.DiskBytes},
	}
}

// places returns the places of all groups that wait.
func places(st *state.State) Places {
	st.Lock()
	keys := slices.Collect(maps.Keys(st.Pending))
	st.Unlock()
	var all []queue.Waiting
	for part := range slices.Chunk(keys, queueChunk) {
		st.Lock()
		for _, k := range part {
			all = appendWaiting(all, st, k)
		}
		st.Unlock()
	}
	found := queue.Places(all)
	out := make(Places, len(all))
	for i, w := range all {
		out[groupKey{state.JobKey{Namespace: w.Namespace, Name: w.Job}, w.Group}] = found[i]
	}
	return out
}

// appendWaiting appends the groups of a job that have instances without a region. The lock is held.
func appendWaiting(to []queue.Waiting, st *state.State, k state.JobKey) []queue.Waiting {
	j := st.Jobs[k]
	if j == nil || j.Record == nil || j.Record.Stopped() || j.Place().Type == place.System {
		return to
	}
	job := j.Place()
	for i := range job.Groups {
		g := &job.Groups[i]
		n := g.Count
		for s := range j.Slots.All() {
			if s.Group == g.Name && !s.Vacant && s.Desired == region.DesiredRun {
				n -= s.Count()
			}
		}
		if n > 0 {
			ask := g.Ask.Resources()
			to = append(to, queue.Waiting{
				Namespace: k.Namespace, Job: k.Name, Group: g.Name, Priority: job.Priority, Revision: j.Revision, Count: int64(n),
				Ask: queue.Asked{CPUMilli: ask.CPUMilli, MemoryBytes: ask.MemoryBytes, DiskBytes: ask.DiskBytes},
			})
		}
	}
	return to
}
