package state

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/room"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// apply changes the state by a record that was written or loaded. msg is a message or a *Record;
// nil means that the record was removed. The lock is held.
func (st *State) apply(key string, msg any, revision int64) {
	switch {
	case key == leadershipKey:
		rec, _ := msg.(*nusav1.LeadershipRecord)
		st.Leadership, st.leadershipRevision = rec, revision
		if !st.loading {
			st.Sessions.Terms = beginningsOf(rec)
		}
	case strings.HasPrefix(key, jobPrefix):
		st.applyJob(key[len(jobPrefix):], recordOfMessage(msg), revision)
	case strings.HasPrefix(key, slotPrefix):
		st.applySlot(key[len(slotPrefix):], msg, revision)
	case strings.HasPrefix(key, RegionPrefix):
		rec, _ := msg.(*nusav1.Region)
		st.applyRegion(key[len(RegionPrefix):], rec, revision)
	case strings.HasPrefix(key, resultPrefix):
		rec, _ := msg.(*nusav1.ResultRecord)
		if j := st.jobForRecord(jobOfKey(key, resultPrefix), rec != nil); j != nil {
			st.Room.Count(j.Result != nil, rec != nil)
			j.Result = rec
			mayLeave(st, j)
			st.forgetIfGone(j)
		}
	case strings.HasPrefix(key, HealthyPrefix):
		rec := recordOfMessage(msg)
		if j := st.jobForRecord(jobOfKey(key, HealthyPrefix), rec != nil); j != nil {
			st.Room.Count(j.Healthy != nil, rec != nil)
			j.Healthy = rec
			st.weigh(j)
			st.forgetIfGone(j)
		}
	case strings.HasPrefix(key, rolloutPrefix):
		applyRollout(st, jobOfKey(key, rolloutPrefix), msg)
	case strings.HasPrefix(key, historyPrefix):
		rec, _ := msg.(*nusav1.HistoryRecord)
		applyHistory(st, key[len(historyPrefix):], entryOfMessage(key, rec, revision))
	case key == authKey:
		rec, _ := msg.(*nusav1.AuthSet)
		applyAuth(st, rec, revision)
	case strings.HasPrefix(key, originPrefix):
		rec, _ := msg.(*nusav1.OriginRecord)
		st.applyOrigin(key[len(originPrefix):], rec, revision)
	case strings.HasPrefix(key, webhookPrefix):
		rec, _ := msg.(*nusav1.WebhookRecord)
		applyWebhook(st, key[len(webhookPrefix):], rec, revision)
	case strings.HasPrefix(key, progressPrefix):
		rec, _ := msg.(*nusav1.WebhookProgress)
		applyProgress(st, key[len(progressPrefix):], rec)
	case strings.HasPrefix(key, idemPrefix):
		rec, _ := msg.(*nusav1.IdempotencyRecord)
		st.Answers.Apply(key[len(idemPrefix):], rec, revision)
	case strings.HasPrefix(key, AuditPrefix):
		if rec, ok := msg.(*nusav1.AuditRecord); ok { // a change without a record removes a range of keys: see Tx.ForgetAudit
			st.Trail.Add(key, int64(len(key)+proto.Size(rec)))
		}
	case key == auditStateKey:
		rec, _ := msg.(*nusav1.AuditState) // Tx.sealAudit made it
		_ = applyAudit(st, rec, revision)
	case key == auditKeysKey:
		st.auditKeys = true
	case strings.HasPrefix(key, CheckpointPrefix):
		st.applyCheckpoint(key[len(CheckpointPrefix):], msg)
	default:
		applyOther(st, key, msg)
	}
}

// jobForRecord returns the job of a record. If the job does not exist, it makes one, but only for a
// record that was put, not for one that was removed.
func (st *State) jobForRecord(k JobKey, put bool) *Job {
	if put {
		return st.job(k)
	}
	return st.Jobs[k]
}

// applyJob changes a job. path is JobKey.String().
func (st *State) applyJob(path string, rec *Record, revision int64) {
	k := jobOfKey(path, "")
	j := st.job(k)
	j.Changes++
	st.SlotsChanged(j)
	if j.Record != nil {
		for _, r := range st.Regions {
			r.forgetRefusals(k)
		}
	}
	st.Demand.drop(j)
	if j.near {
		delete(st.Near, k)
		st.Bounds.addJob(j.Record, -1)
		j.near = false
	}
	delete(st.systems, k)
	noteTemplate(st, k, rec)
	st.ProbeDemandStale = true
	st.Room.Count(j.Record != nil, rec != nil)
	was := j.Place()
	if j.Record != nil && rec != nil {
		st.Openings++ // another version may leave room that the earlier one waited for or held
	}
	if j.Record == nil && rec != nil {
		j.path = path
		st.Names.Add(path)
	} else if rec == nil {
		st.Names.Removed()
	}
	j.Record, j.Revision = rec, revision
	j.followCanaries()
	mayLeave(st, j)
	j.keepDecisions(was, rec)
	j.forgetUnplaced(rec)
	st.JobChanged(j)
	if !st.loading { // pendUnsteady decides when the slots are loaded too
		st.Pend(k)
	}
	for s := range j.Slots.All() {
		st.release(was, &s) // the groups of the new version may ask for something else
		st.Bounds.addSlot(was, &s, -1)
	}
	if rec == nil {
		st.weigh(j)
		st.forgetIfGone(j)
		return
	}
	st.weigh(j)
	for s := range j.Slots.All() {
		st.charge(j.Place(), &s)
		st.Bounds.addSlot(j.Place(), &s, 1)
	}
	if rec.Type() == place.System {
		st.systems[k] = struct{}{}
	}
	if !rec.Stopped() {
		st.Demand.add(j)
		if HasNear(j.Place()) {
			st.Near[k], j.near = struct{}{}, true
			st.Bounds.addJob(rec, 1)
		}
	}
	if rec.Purge() {
		st.Purge[k] = struct{}{}
	}
}

// weigh updates the weight of a job after a change of its records.
func (st *State) weigh(j *Job) {
	was := j.weight
	j.weight = 0
	if j.Record != nil {
		j.weight += int64(j.Record.specSize()) + j.Record.earlier + room.JobOverhead
	}
	if j.Healthy != nil {
		j.weight += int64(j.Healthy.specSize())
	}
	st.Room.Weigh(j.Key.Namespace, was, j.weight)
}

// applySlot changes the state by a slot. msg is a message that was written, or a slot that was read.
func (st *State) applySlot(key string, msg any, revision int64) {
	switch slot := msg.(type) {
	case *region.Slot:
		st.putSlot(key, slot, revision)
		return
	case *nusav1.Slot:
		if slot != nil {
			put := slotFromProto(key, slot, revision)
			st.putSlot(key, &put, revision)
			return
		}
	}
	if parts := strings.SplitN(key, "/", 3); len(parts) == 3 {
		st.removeSlot(st.job(JobKey{parts[0], parts[1]}), key, revision)
	}
}

func (st *State) removeSlot(j *Job, key string, revision int64) {
	old, had := j.Slots.Get(key)
	st.noteSlot(j, &old)
	st.Room.Count(had, false)
	st.formerChanged(old.Former, nil)
	j.Slots.Delete(key)
	if had {
		st.recharge(j, &old, &region.Slot{})
		st.removeOrders(&old, revision)
		// The result or the rollout may have waited for this slot only.
		st.Ended[j.Key], st.Rollouts[j.Key] = struct{}{}, struct{}{}
	}
	st.Pend(j.Key)
	mayLeave(st, j)
	st.forgetIfGone(j)
}

// noteSlot records that a slot of a job changes. The lock is held.
func (st *State) noteSlot(j *Job, old *region.Slot) {
	j.Changes++
	st.JobChanged(j)
	st.ProbeDemandStale = st.ProbeDemandStale || j.near
	if IsMoved(old) {
		st.MovedChanges++
	}
	st.slotsChanged(old.Region)
}

// putSlot changes the state for a slot that is stored at a revision. key is Slot.Key. The lock is held.
func (st *State) putSlot(key string, s *region.Slot, revision int64) {
	j := st.job(jobOfSlot(s))
	k := j.Key
	old, had := j.Slots.Find(s)
	st.noteSlot(j, &old)
	st.Room.Count(had, true)
	s.Namespace, s.Job = k.Namespace, k.Name
	j.Slots.Put(s)
	st.slotsChanged(s.Region)
	st.formerChanged(old.Former, s.Former)
	st.recharge(j, &old, s)
	pending := st.loading && j.Record != nil // pendUnsteady decides
	if !pending && (!had || s.Vacant || old.From != s.From || old.To != s.To || j.needsPlacer(s)) {
		st.Pend(k) // a split may leave indices without an owner
	}
	if s.State == region.Done {
		st.Ended[k] = struct{}{}
	}
	if !j.firstVersion() {
		st.Rollouts[k] = struct{}{}
	}
	if IsMoved(s) {
		st.Moved[k] = struct{}{}
		st.MovedChanges++
	}
	if s.Home != "" {
		if st.NotHome[s.Home] == nil {
			st.NotHome[s.Home] = JobSet{}
		}
		st.NotHome[s.Home][k] = struct{}{}
	}
	st.putOrders(j, key, &old, s, revision)
	mayLeave(st, j)
}

// formerChanged marks the slots of the former owners as changed.
func (st *State) formerChanged(old, now []region.FormerOwner) {
	if slices.Equal(old, now) {
		return
	}
	for _, f := range old {
		st.slotsChanged(f.Region)
	}
	for _, f := range now {
		st.slotsChanged(f.Region)
	}
}

// IsMoved reports whether a verdict moved a slot: it has former owners, or is not at its home.
func IsMoved(s *region.Slot) bool {
	return s.Home != "" || len(s.Former) > 0 || s.ReturnTo != "" || s.Vacant
}

// putOrders puts the orders about a slot for its owner and its former owners. key is Slot.Key. old is
// the slot before the change, or the zero slot if there was none. The lock is held.
func (st *State) putOrders(j *Job, key string, old, s *region.Slot, revision int64) {
	if s.System {
		key = s.WireKey()
	}
	rec := st.orderedSpec(j, old, s, key)
	if old.Region != "" && old.Region != s.Region && formerOf(s, old.Region) < 0 {
		st.removeOrder(old.Region, old, revision)
	}
	for _, f := range old.Former {
		if f.Region != s.Region && formerOf(s, f.Region) < 0 {
			st.removeOrder(f.Region, old, revision)
		}
	}
	for i := range s.Former {
		st.putOrder(s.Former[i].Region, key, Order{Revision: revision, job: j}, false)
	}
	if s.Vacant {
		if formerOf(s, s.Region) < 0 {
			st.removeOrder(s.Region, s, revision)
		}
		return
	}
	shows := showsAnswer(old, s)
	st.putOrder(s.Region, key, Order{Revision: revision, job: j, record: rec, echo: shows && old.Revision == old.Generation}, shows)
}

// putFormerOrders puts the orders about former slots of a region whose record was removed and is
// stored again.
func (st *State) putFormerOrders(name string, revision int64) {
	for k := range st.Moved {
		j := st.Jobs[k]
		for s := range j.Slots.All() {
			if formerOf(&s, name) >= 0 {
				st.putOrder(name, s.WireKey(), Order{Revision: revision, job: j}, false)
			}
		}
	}
}

// orderedSpec returns the record with the spec for a slot's owner. A slot of an older version keeps
// its spec until the placer rewrites the slot, even if its owner changes. After an election the spec of a
// version that is not the stored healthy one is only in the owner's log, so the order is sent without a
// spec. With the present spec, the owner would start the new version before its turn, under the older
// number.
func (st *State) orderedSpec(j *Job, old, s *region.Slot, key string) *Record {
	if j.Record != nil && s.JobVersion == j.Record.Version() {
		return j.Record
	}
	if h := j.Healthy; h != nil && h.Version() == s.JobVersion && h.Run(0) == s.Run {
		return h
	}
	for i, name := range [...]string{s.Region, old.Region} {
		r := st.Regions[name]
		if r == nil || i > 0 && name == s.Region {
			continue
		}
		prev, held := r.Orders.Get(key)
		if held && prev.record != nil && prev.record.Version() == s.JobVersion {
			return prev.record
		}
	}
	return nil
}

// putOrder puts an order for a region. later: the region does not wait for it.
func (st *State) putOrder(name, key string, order Order, later bool) {
	r := st.Regions[name]
	if r == nil {
		return
	}
	r.Orders.PutAt(uint64(order.Revision), key, order)
	switch {
	case r.Session == nil:
	case later:
		r.Session.WakeLater()
	default:
		r.Session.Wake()
	}
}

// removeOrders removes the orders about a slot for its owner and its former owners.
func (st *State) removeOrders(s *region.Slot, revision int64) {
	st.removeOrder(s.Region, s, revision)
	for _, f := range s.Former {
		st.removeOrder(f.Region, s, revision)
	}
}

func (st *State) removeOrder(name string, s *region.Slot, revision int64) {
	if r := st.Regions[name]; r != nil {
		r.Orders.DeleteAt(uint64(revision), s.WireKey())
		r.Wake()
	}
}

// maxParts bounds the numbers of the records of a checkpoint.
const maxParts = 1 << 20

// applyCheckpoint adds a record of a region's checkpoint. msg is a message that was written, or a record that
// was read. Its summaries count only while the state is loaded. After that the region itself sends later
// summaries.
func (st *State) applyCheckpoint(key string, msg any) {
	name, number, _ := strings.Cut(key, "/")
	n, err := strconv.Atoi(number)
	r := st.Regions[name]
	if err != nil || r == nil || n < 0 || n >= maxParts {
		return
	}
	part := r.stored.reach(n)
	st.Room.Count(part.stored, msg != nil)
	part.stored = msg != nil
	if rec, read := msg.(*loadedCheckpoint); read && st.loading {
		rec.number = n
		r.checkpoint = append(r.checkpoint, rec)
		if rec.GetReport() != nil {
			r.SetReport(rec.GetReport(), st.Clock(), true)
		}
	}
}

func (st *State) applyRegion(name string, rec *nusav1.Region, revision int64) {
	r := st.Regions[name]
	st.Room.Count(r != nil, rec != nil)
	st.MovedChanges++
	st.Openings++
	if rec == nil {
		if r != nil {
			delete(st.Regions, name)
			st.Forms.Remove(name)
			st.names = nil
			// Another cluster may get the name. Its log begins at index 1 again.
			for _, j := range st.Jobs {
				j.Summaries.Delete(name)
			}
			st.RegionsChanged()
			// The rows must be removed before another region gets the name.
			st.Latency.DropRemovedRegions()
		}
		return
	}
	if r == nil {
		r = &Region{Name: name, Orders: link.NewOutbox[Order](st.Epoch, maxRemovals), SummaryKeys: map[string]int32{}}
		// The outbox begins above position 0, because a region also acknowledges an empty set of
		// orders.
		r.Orders.ForgetUpTo(uint64(revision))
		r.Life = region.Open(st.SessionConfig(), recordOf(name, rec), st.Clock())
		st.Regions[name], st.names = r, nil
		st.putFormerOrders(name, revision)
		st.chargeAll(name)
	}
	if was := r.Life.ClusterID; was != "" && was != rec.GetClusterId() {
		st.forgetSummaries(r) // the log of another cluster begins at index 1 again
		st.Forms.Remove(name)
	}
	changed := r.Record.GetCordoned() != rec.GetCordoned() || r.Record.GetDraining() != rec.GetDraining() ||
		r.Record.GetClusterId() != rec.GetClusterId() || !proto.Equal(r.Record.GetDefinition(), rec.GetDefinition())
	st.MovesBegan = st.MovesBegan || !st.loading && (rec.GetDraining() && !r.Record.GetDraining() || rec.GetReturning() && !r.Record.GetReturning())
	r.Record, r.Revision = rec, revision
	var effects []region.Effect
	r.Life, effects = region.Step(st.SessionConfig(), r.Life, st.Clock(), region.Stored{Record: recordOf(name, rec)})
	r.EndStream(effects)
	r.Touch()
	r.Stamp = st.Notify()
	if changed {
		st.RegionsChanged()
	}
}

// applyOrigin stores an origin record, and makes the sessions send the table of origins again. The
// lock is held.
func (st *State) applyOrigin(domain string, rec *nusav1.OriginRecord, revision int64) {
	st.Origins.set(domain, rec, revision)
	st.Openings++
	if st.loading {
		return // Load rebuilds the table once, at its end
	}
	if err := st.Origins.rebuild(); err != nil {
		return // cannot fail: the record was checked before it was written
	}
	st.Notify()
	st.ProbeDemandStale = true
	for _, r := range st.Regions {
		if r.Session != nil {
			r.Session.Unsent.Origins = true
			r.Session.Wake()
		}
	}
}

// recharge updates the regions' accounts and the demand for a slot that changed from old to s. The
// zero slot means that there is no slot. The lock is held.
func (st *State) recharge(j *Job, old, s *region.Slot) {
	st.Demand.change(j, old, s)
	st.Bounds.addSlot(j.Place(), old, -1)
	st.Bounds.addSlot(j.Place(), s, 1)
	if place.SameCharges(old, s) {
		return
	}
	if old.Region != "" {
		st.Openings++
	}
	st.release(j.Place(), old)
	st.charge(j.Place(), s)
}

func (st *State) charge(j *place.Job, s *region.Slot) {
	if s.Region == "" {
		return
	}
	for _, c := range place.ChargesOf(j, s) {
		if r := st.Regions[c.Region]; r != nil {
			r.account.Put(r.reported(), c)
			r.Touch()
		}
	}
}

func (st *State) release(j *place.Job, s *region.Slot) {
	if s.Region == "" {
		return
	}
	for _, c := range place.ChargesOf(j, s) {
		if r := st.Regions[c.Region]; r != nil {
			r.account.Remove(r.reported(), c.Key)
			r.Touch()
		}
	}
}
