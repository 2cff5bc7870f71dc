package uplink

import (
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// repeatDisconnected is how often the summary of a job with disconnected instances is made
// again, because the silence of their nodes grows. The repetition also informs a new global
// server that the instances are still disconnected.
const repeatDisconnected = time.Minute

// summaries holds the latest summaries of jobs, and the jobs whose summaries are outdated.
// It is safe for concurrent use.
type summaries struct {
	region string

	mu sync.Mutex
	// outbox is nil without a global tier. Changes are then not recorded.
	outbox *link.Outbox[*nusav1.JobSummary]
	// dirty are the jobs whose summaries are outdated.
	dirty map[state.JobKey]struct{}
	// withReasons are the groups for which the newest plan has reasons.
	withReasons map[state.GroupKey]struct{}
	// disconnected are the jobs with disconnected instances. Their summaries are made again
	// at repeatAt.
	disconnected map[state.JobKey]struct{}
	repeatAt     time.Time
}

// start begins to record changes. epoch identifies the outbox.
func (s *summaries) start(epoch string) {
	s.outbox = link.NewOutbox[*nusav1.JobSummary](epoch, maxTombstones)
	s.dirty, s.disconnected = map[state.JobKey]struct{}{}, map[state.JobKey]struct{}{}
}

// cursor returns a cursor that continues at a position.
func (s *summaries) cursor(at link.Position) *link.Cursor[*nusav1.JobSummary] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outbox.Cursor(at)
}

func (s *summaries) markJob(k state.JobKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty[k] = struct{}{}
}

// markGroups records that the jobs of these groups changed. It returns false without a
// global tier.
func (s *summaries) markGroups(groups []state.GroupKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outbox == nil {
		return false
	}
	for _, g := range groups {
		s.dirty[g.JobKey()] = struct{}{}
	}
	return true
}

// markReasons records changes of the reasons in a plan: for groups that have reasons now,
// and for groups that had reasons before. It returns whether there are any such groups.
func (s *summaries) markReasons(groups map[state.GroupKey]struct{}) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outbox == nil {
		return false
	}
	for g := range s.withReasons {
		s.dirty[g.JobKey()] = struct{}{}
	}
	for g := range groups {
		s.dirty[g.JobKey()] = struct{}{}
	}
	changed := len(s.withReasons) > 0 || len(groups) > 0
	s.withReasons = groups
	return changed
}

// update makes the summaries of changed jobs again. It calls prepare after it has taken the
// list of these jobs. The function that prepare returns makes the summary of a job, or
// returns nil when nothing of the job is left.
func (s *summaries) update(prepare func() func(state.JobKey) *nusav1.JobSummary) {
	s.mu.Lock()
	dirty := s.dirty
	s.dirty = map[state.JobKey]struct{}{}
	s.mu.Unlock()
	// prepare is called without the lock, because commits of the log wait for this lock.
	summarize := prepare()
	keys := slices.SortedFunc(maps.Keys(dirty), state.JobKey.Compare)
	made := make([]*nusav1.JobSummary, len(keys))
	for i, k := range keys {
		made[i] = summarize(k)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, k := range keys {
		sum := made[i]
		s.noteDisconnected(k, sum)
		key := k.Namespace + "/" + wire.JobName(k.Job, k.Local, s.region)
		old, held := s.outbox.Get(key)
		switch {
		case sum == nil && held:
			s.outbox.Delete(key)
		case sum != nil && (!held || !sameSummary(old, sum)):
			s.outbox.Put(key, sum)
		}
	}
}

// sameSummary compares all fields except the index.
func sameSummary(a, b *nusav1.JobSummary) bool {
	b = proto.CloneOf(b)
	b.Index = a.GetIndex()
	return proto.Equal(a, b)
}

// noteDisconnected records whether a job has disconnected instances. s.mu is held.
func (s *summaries) noteDisconnected(k state.JobKey, sum *nusav1.JobSummary) {
	if len(sum.GetDisconnected()) == 0 {
		delete(s.disconnected, k)
		return
	}
	if len(s.disconnected) == 0 {
		s.repeatAt = time.Now().Add(repeatDisconnected)
	}
	s.disconnected[k] = struct{}{}
}

// repeatDue marks the jobs with disconnected instances when their summaries are due again.
// It returns when they are due next (the zero time for never), and whether any job is
// marked.
func (s *summaries) repeatDue(now time.Time) (next time.Time, dirty bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.disconnected) > 0 {
		if !now.Before(s.repeatAt) {
			s.repeatAt = now.Add(repeatDisconnected)
			for k := range s.disconnected {
				s.dirty[k] = struct{}{}
			}
		}
		next = s.repeatAt
	}
	return next, len(s.dirty) > 0
}

// nextBatch returns the next summaries for a cursor. It returns false when there are none.
func (s *summaries) nextBatch(c *link.Cursor[*nusav1.JobSummary]) (link.Batch[*nusav1.JobSummary], bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.NextWithin(maxBatchItems, maxBatchBytes, func(i link.Item[*nusav1.JobSummary]) int { return proto.Size(i.Value) })
}

// fullSetDue reports whether a cursor must still send the full set.
func (s *summaries) fullSetDue(c *link.Cursor[*nusav1.JobSummary]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.Full()
}
