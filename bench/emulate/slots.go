package emulate

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// slot is a slot of the region, from the latest order.
type slot struct {
	namespace, job, group    string
	from, to                 int32
	generation, version, run int64
	revision                 int64 // of the order
	desired                  nusav1.SlotDesired
	// accepted: the store has the acceptance of this generation.
	accepted bool
	// hold: the slot waits when the region has no room for it. waits: the slot waits now.
	hold, waits bool
	// ended: all its instances have ended.
	ended bool
	// answer is the state that the region reports until the order changes. It is
	// unspecified if there is nothing to report.
	answer nusav1.SlotState
}

func slotKey(s *nusav1.Slot) string {
	return s.GetNamespace() + "/" + s.GetJob() + "/" + s.GetGroup() + "/" + strconv.Itoa(int(s.GetFrom()))
}

func (s *slot) jobKey() string { return s.namespace + "/" + s.job }

func (s *slot) runs() bool { return s.desired == nusav1.SlotDesired_SLOT_DESIRED_RUN }

func (s *slot) toProto() *nusav1.SlotAnswer {
	return &nusav1.SlotAnswer{
		Namespace: s.namespace, Job: s.job, Group: s.group, From: s.from, To: s.to, Generation: s.generation, State: s.answer,
	}
}

// orders handles one message of orders. The orders of a change are applied when all
// messages of the change have arrived.
func (r *region) orders(m *nusav1.SlotOrders) error {
	now := time.Now()
	b := link.Batch[*nusav1.SlotOrder]{
		Full: m.GetFull(), Last: m.GetLast(), Removed: m.GetRemoved(), Position: positionOf(m.GetPosition()),
		Items: make([]link.Item[*nusav1.SlotOrder], 0, len(m.GetOrders())),
	}
	for _, o := range m.GetOrders() {
		b.Items = append(b.Items, link.Item[*nusav1.SlotOrder]{Key: slotKey(o.GetSlot()), Value: o})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	change, whole, err := r.inbox.Add(b, maps.Keys(r.held))
	if err != nil || !whole {
		return err
	}
	changed := map[string]bool{}
	for _, item := range change.Upserts {
		r.put(item.Key, item.Value, now, changed)
	}
	for _, key := range change.Removed {
		r.remove(key, changed)
	}
	r.startWaiting(changed)
	for key := range changed {
		r.summarise(key)
	}
	r.applied++
	r.position, r.ackDue = change.Position, true
	if change.Full {
		r.wholeOrders, r.ordersLevel = true, r.globalLevel
	}
	r.wakeSender()
	return nil
}

// put applies one order. It adds the job to changed if the job's summary changes. The
// caller holds r.mu.
func (r *region) put(key string, o *nusav1.SlotOrder, now time.Time, changed map[string]bool) {
	w := o.GetSlot()
	r.placed, r.revision = max(r.placed, o.GetRevision()), max(r.revision, o.GetRevision())
	next := &slot{
		namespace: w.GetNamespace(), job: w.GetJob(), group: w.GetGroup(), from: w.GetFrom(), to: w.GetTo(),
		generation: w.GetGeneration(), version: w.GetJobVersion(), run: w.GetRun(), revision: o.GetRevision(), desired: w.GetDesired(),
		hold: w.GetHold() != nil,
	}
	old := r.held[key]
	same := old != nil && old.generation == next.generation
	stored := w.GetState() == nusav1.SlotState_SLOT_STATE_ACCEPTED || w.GetState() == nusav1.SlotState_SLOT_STATE_DONE
	next.accepted = stored || same && old.accepted
	switch next.desired {
	case nusav1.SlotDesired_SLOT_DESIRED_RUN:
		if !stored {
			next.answer = nusav1.SlotState_SLOT_STATE_ACCEPTED
		}
		next.ended = same && old.ended
		if next.ended && w.GetState() != nusav1.SlotState_SLOT_STATE_DONE {
			next.answer = nusav1.SlotState_SLOT_STATE_DONE
		}
		if !same && r.f.cfg.Offered != nil {
			r.f.cfg.Offered(w, now)
		}
	case nusav1.SlotDesired_SLOT_DESIRED_STOP:
		next.answer = nusav1.SlotState_SLOT_STATE_STOPPED
	case nusav1.SlotDesired_SLOT_DESIRED_REVOKE:
		next.answer = nusav1.SlotState_SLOT_STATE_REVOKED
	}
	if next.accepted && !(same && old.accepted) && r.f.cfg.Accepted != nil {
		r.f.cfg.Accepted(w, now)
	}
	if next.answer != nusav1.SlotState_SLOT_STATE_UNSPECIFIED && !(same && old.answer == next.answer) {
		r.fresh = append(r.fresh, key)
	}
	if !same || old.ended != next.ended || old.desired != next.desired || old.version != next.version || old.run != next.run || old.to != next.to {
		changed[next.jobKey()] = true
	}
	r.hold(key, next)
}

// hold stores next as the slot of a key. A nil next removes the slot. The caller holds
// r.mu.
func (r *region) hold(key string, next *slot) {
	if old := r.held[key]; old != nil {
		r.account(old, -1)
		job := r.jobs[old.jobKey()]
		i := slices.Index(job, old)
		r.jobs[old.jobKey()] = slices.Delete(job, i, i+1)
	}
	delete(r.unanswered, key)
	if next == nil {
		delete(r.held, key)
		return
	}
	r.held[key] = next
	next.waits = next.hold && !r.roomFor(next)
	if next.waits {
		r.waiting = append(r.waiting, key)
	}
	r.account(next, 1)
	r.jobs[next.jobKey()] = append(r.jobs[next.jobKey()], next)
	if next.answer != nusav1.SlotState_SLOT_STATE_UNSPECIFIED {
		r.unanswered[key] = struct{}{}
	}
}

// roomFor reports whether a node has room for an instance of the slot. The caller holds
// r.mu.
func (r *region) roomFor(s *slot) bool {
	if r.f.cfg.Ask == nil {
		return true
	}
	cpu, memory := r.f.cfg.Ask(s.job)
	free := r.free()
	return free.CpuMilli >= cpu && free.MemoryBytes >= memory
}

// startWaiting starts the waiting slots that fit now, oldest first. The caller holds r.mu.
func (r *region) startWaiting(changed map[string]bool) {
	r.waiting = slices.DeleteFunc(r.waiting, func(key string) bool {
		s := r.held[key]
		if s == nil || !s.waits {
			return true
		}
		if !r.roomFor(s) {
			return false
		}
		s.waits = false
		r.account(s, 1)
		changed[s.jobKey()] = true
		return true
	})
}

// noteEnded tells the configuration that a region says that the slots of a job have ended.
func (r *region) noteEnded(namespace, job string) {
	if r.f.cfg.Ended != nil {
		r.f.cfg.Ended(namespace, job, time.Now())
	}
}

// remove forgets a slot. The caller holds r.mu.
func (r *region) remove(key string, changed map[string]bool) {
	if old := r.held[key]; old != nil {
		changed[old.jobKey()] = true
		r.hold(key, nil)
	}
}

// account adds n times what the slot reserves to the sums of the region. The caller holds
// r.mu.
func (r *region) account(s *slot, n int64) {
	if !s.runs() || s.waits || s.ended || r.f.cfg.Ask == nil {
		return
	}
	cpu, memory := r.f.cfg.Ask(s.job)
	n *= int64(s.to - s.from)
	r.cpu, r.memory, r.instances = r.cpu+n*cpu, r.memory+n*memory, r.instances+n
}

// summarise puts the summary of a job into the outbox. All ordered instances count as
// running, unless their slot waits or has ended. The caller holds r.mu.
func (r *region) summarise(key string) {
	job := r.jobs[key]
	if len(job) == 0 {
		delete(r.jobs, key)
		r.summaries.Delete(key)
		return
	}
	s := &nusav1.JobSummary{
		Namespace: job[0].namespace, Job: job[0].job, Groups: map[string]*nusav1.InstanceCounts{},
		Incarnation: 1, Index: r.applied + 1, Version: -1, Run: -1,
	}
	for _, part := range job {
		if !part.runs() {
			continue
		}
		c := s.Groups[part.group]
		if c == nil {
			c = &nusav1.InstanceCounts{}
			s.Groups[part.group] = c
		}
		switch n := part.to - part.from; {
		case part.ended:
			c.Complete += n
		case part.waits:
			c.Pending += n
		default:
			c.Running += n
		}
		if s.Version < 0 || part.version < s.Version {
			s.Version = part.version
		}
		if s.Run < 0 || part.run < s.Run {
			s.Run = part.run
		}
	}
	r.summaries.Put(key, s)
}

// answers returns the answers that were not sent yet. With repeat it returns all answers
// that the orders do not show yet. The caller holds r.mu.
func (r *region) answers(repeat bool) []*nusav1.SlotAnswer {
	keys := r.fresh
	r.fresh = nil
	if repeat {
		keys = slices.Sorted(maps.Keys(r.unanswered))
	}
	var out []*nusav1.SlotAnswer
	for _, key := range keys {
		if s := r.held[key]; s != nil && s.answer != nusav1.SlotState_SLOT_STATE_UNSPECIFIED {
			out = append(out, s.toProto())
			r.finish(key, s)
		}
	}
	return out
}

// finish ends the instances of a slot that the region has just accepted, with Config.Ends. The caller holds r.mu.
func (r *region) finish(key string, s *slot) {
	if !r.f.cfg.Ends || !s.runs() || s.ended {
		return
	}
	r.account(s, -1)
	s.ended, s.answer = true, nusav1.SlotState_SLOT_STATE_DONE
	r.fresh = append(r.fresh, key)
	r.summarise(s.jobKey())
	r.wakeSender()
}
