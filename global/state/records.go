package state

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/recovery"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// Job returns a job's record as the transaction leaves it. The revision is that of the stored
// record; 0 if this transaction changes the record, or if none is stored.
func (t *Tx) Job(k JobKey) (*Record, int64) {
	if ch, ok := t.findOf(jobPrefix, k); ok {
		return ch.job, 0
	}
	return t.State.JobRecord(k)
}

// PutJob stores a job. The caller must not change rec afterwards.
func (t *Tx) PutJob(k JobKey, rec *nusav1.JobRecord) error {
	stored, err := newJobRecord(rec, nil)
	if err != nil {
		return err
	}
	return t.putRecord(k, stored)
}

// putRecord stores the record of a job.
func (t *Tx) putRecord(k JobKey, rec *Record) error {
	_, known := t.State.JobRecord(k)
	if err := leaveHistory(t, k); err != nil {
		return err
	}
	return t.set(txChange{key: k.recordKey(), known: known, job: rec})
}

// DeleteJob removes a job that has no slots, with its result and its healthy version.
func (t *Tx) DeleteJob(k JobKey) error {
	_, known := t.State.JobRecord(k)
	if err := t.set(txChange{key: k.recordKey(), known: known}); err != nil {
		return err
	}
	if err := leaveHistory(t, k); err != nil {
		return err
	}
	if err := t.DeleteHealthy(k); err != nil {
		return err
	}
	if t.Rollout(k) != nil {
		if err := t.deleteUnchecked(k.rolloutKey()); err != nil {
			return err
		}
	}
	if err := forgetAttempts(t, k); err != nil {
		return err
	}
	if rec, _ := t.State.JobRecord(k); rec.Version() > 1 {
		if err := t.forgetVersions(k); err != nil {
			return err
		}
	}
	return t.deleteUnchecked(k.resultKey())
}

// PutResult stores the result of a run of a job.
func (t *Tx) PutResult(k JobKey, rec *nusav1.ResultRecord) error {
	return t.putUnchecked(k.resultKey(), rec)
}

// PutHealthy stores a version that ran with all instances.
func (t *Tx) PutHealthy(k JobKey, rec *Record, run int64) error {
	stored := rec.Full()
	stored.Job.Run, stored.Versions = run, nil
	return t.putUnchecked(k.healthyKey(), stored)
}

// PutRollout stores what cannot be derived about the rollout of a job.
func (t *Tx) PutRollout(k JobKey, rec *nusav1.RolloutRecord) error {
	return t.putUnchecked(k.rolloutKey(), rec)
}

// Rollout returns the record of a job's rollout as the transaction leaves it, or nil.
func (t *Tx) Rollout(k JobKey) *nusav1.RolloutRecord {
	if ch, ok := t.find(k.rolloutKey()); ok {
		rec, _ := ch.msg.(*nusav1.RolloutRecord)
		return rec
	}
	if j := t.State.Jobs[k]; j != nil {
		return j.StoredRollout
	}
	return nil
}

// applyRollout changes the state for a stored or removed record of a rollout. The lock is held.
func applyRollout(st *State, k JobKey, msg any) {
	rec, _ := msg.(*nusav1.RolloutRecord)
	j := st.jobForRecord(k, rec != nil)
	if j == nil {
		return
	}
	st.Room.Count(j.StoredRollout != nil, rec != nil)
	j.StoredRollout = rec
	if j.Record != nil && !j.Record.Stopped() { // the numbers of instances may change
		st.Demand.drop(j)
		j.followCanaries()
		st.Demand.add(j)
	}
	if j.Record != nil {
		st.Pending[k], st.Rollouts[k] = struct{}{}, struct{}{}
	}
	st.JobChanged(j)
	st.forgetIfGone(j)
}

// DeleteHealthy removes the healthy version of a job.
func (t *Tx) DeleteHealthy(k JobKey) error { return t.deleteUnchecked(k.healthyKey()) }

// Slots returns the slots of a group as the transaction leaves them. Group "" means all groups.
func (t *Tx) Slots(k JobKey, group string) []region.Slot { return t.AppendSlots(nil, k, group) }

// AppendSlots appends the result of Slots to a list.
func (t *Tx) AppendSlots(out []region.Slot, k JobKey, group string) []region.Slot {
	last := t.slots[k]
	if j := t.State.Jobs[k]; j != nil {
		out = slices.Grow(out, j.Slots.Len())
		for s := range j.Slots.All() {
			if group != "" && s.Group != group {
				continue
			}
			if last > 0 && t.changesSlot(&s) {
				continue
			}
			out = append(out, s)
		}
	}
	from := len(out)
	for ; last > 0; last = t.changes[last-1].before {
		ch := &t.changes[last-1]
		if ch.slot != nil && (group == "" || ch.slot.Group == group) {
			out = append(out, storedSlot(ch.slot, ch.known))
		}
	}
	slices.Reverse(out[from:]) // in the order of the changes
	return out
}

// Given returns the charges of the slots that the transaction offers.
func (t *Tx) Given() (out []place.Charge) {
	for _, ch := range t.changes {
		if ch.slot == nil || ch.slot.Generation != 0 {
			continue
		}
		s := storedSlot(ch.slot, ch.known)
		s.Generation = math.MaxInt64 // so that no report includes the slot
		if j := t.State.Jobs[jobOfSlot(&s)]; j != nil {
			out = append(out, place.ChargesOf(j.Place(), &s)...)
		}
	}
	return out
}

// Stale reports whether the slot of one of the changes has changed since the change was decided.
func (t *Tx) Stale(changes []region.Change) bool {
	for _, c := range changes {
		var stored int64
		if j := t.State.Jobs[jobOfSlot(&c.Slot)]; j != nil {
			stored = j.slotRevision(c.Slot.Key())
		}
		if t.changesSlot(&c.Slot) || c.Slot.Revision != stored {
			return true
		}
	}
	return false
}

// ChangeSlots writes the changes that the cores decided. The caller must not change them afterwards.
func (t *Tx) ChangeSlots(changes []region.Change) error {
	for i := range changes {
		c := &changes[i]
		ch := txChange{key: slotKey(&c.Slot), known: c.Slot.Revision}
		if !c.Delete {
			ch.slot = &c.Slot
		}
		k := jobOfSlot(&c.Slot)
		_, again := t.at[ch.key]
		ch.before = t.slots[k]
		if err := t.set(ch); err != nil {
			return err
		}
		if !again {
			t.slots[k] = len(t.changes)
		}
	}
	return nil
}

// CountSlots counts the slots that a region owns, as the transaction leaves them. Vacant slots do
// not count. ended is the number of these slots whose instances have all ended.
func (t *Tx) CountSlots(name string) (owned, ended int) {
	r := t.State.Regions[name]
	if r == nil {
		return 0, 0
	}
	count := func(done bool) {
		owned++
		if done {
			ended++
		}
	}
	t.State.EachSlot(r, func(_ *Job, s region.Slot) {
		if !t.changesSlot(&s) {
			count(s.State == region.Done)
		}
	})
	for _, ch := range t.changes {
		if s := ch.slot; s != nil && s.Region == name && !s.Vacant {
			count(s.State == region.Done)
		}
	}
	return owned, ended
}

// CountFormer returns the number of slots that a region may still run as a former owner.
func (t *Tx) CountFormer(region string) int {
	n := 0
	for k := range t.State.Moved {
		for _, s := range t.Slots(k, "") {
			if formerOf(&s, region) >= 0 {
				n++
			}
		}
	}
	return n
}

// Region returns a region's record as the transaction leaves it, and the revision of the stored
// record. See Job.
func (t *Tx) Region(name string) (*nusav1.Region, int64) {
	if ch, ok := t.find(regionKey(name)); ok {
		r, _ := ch.msg.(*nusav1.Region)
		return r, 0
	}
	if r := t.State.Regions[name]; r != nil {
		return r.Record, r.Revision
	}
	return nil, 0
}

// ExpectRegion makes the store refuse the transaction if the record of a region has changed since
// the state read it.
func (t *Tx) ExpectRegion(name string) {
	key := regionKey(name)
	known := t.State.Regions[name]
	if known == nil || slices.ContainsFunc(t.expected, func(e txChange) bool { return e.key == key }) {
		return
	}
	t.expected = append(t.expected, txChange{key: key, known: known.Revision})
}

// Session returns a region's session state with the record as the transaction leaves it. If the
// region is unknown, Session returns a new state.
func (t *Tx) Session(name string) region.State {
	rec, _ := t.Region(name)
	if r := t.State.Regions[name]; r != nil && rec != nil {
		life := r.Life
		life.Record = recordOf(name, rec)
		return life
	}
	return region.Open(t.State.SessionConfig(), recordOf(name, rec), t.State.Clock())
}

// PutLeadership changes the record of the leadership term. It writes nothing if change changes
// nothing.
func (t *Tx) PutLeadership(change func(*nusav1.LeadershipRecord)) error {
	rec := t.State.Leadership
	if ch, ok := t.find(leadershipKey); ok {
		rec, _ = ch.msg.(*nusav1.LeadershipRecord)
	}
	next := &nusav1.LeadershipRecord{}
	if rec != nil {
		next = proto.CloneOf(rec)
	}
	change(next)
	if proto.Equal(next, rec) {
		return nil
	}
	return t.set(txChange{key: leadershipKey, msg: next, known: t.State.leadershipRevision})
}

// PutConflict stores that a region knows a greater revision or leadership term than the store has.
func (t *Tx) PutConflict(c *nusav1.RevisionConflict) error {
	return t.PutLeadership(func(rec *nusav1.LeadershipRecord) {
		c.Stored = t.State.Revision
		rec.Conflict = recovery.Merge(rec.GetConflict(), c)
	})
}

// ErrNoConflict says that there is nothing to recover.
var ErrNoConflict = errors.New("no region knows more than the store: there is nothing to recover")

// Recover makes all later revisions and leadership terms greater than those that the regions know.
// It is for a store that was restored from an old copy. The conflict ends with the present term,
// after the next term has offered every slot again: see offerAgain. No record says what runs where
// under the leases of the lost history. So no lease is granted until everything that such a lease
// bound has ended, and every region has confirmed what it runs.
func (t *Tx) Recover() error {
	c := t.State.Leadership.GetConflict()
	if c == nil || c.GetRecovered() {
		return ErrNoConflict
	}
	t.raise = max(t.raise, c.GetKnown(), t.State.Revision) + region.RecoveryStep
	why := fmt.Sprintf("revision %d was known, %d was stored", c.GetKnown(), c.GetStored())
	if err := t.Audit(audit.Entry{Verb: "recover", Kind: "system", Region: c.GetRegion(), Reason: why}); err != nil {
		return err
	}
	t.Event("store.recovered", t.State.Sessions.Federation, "%s; revisions continue above %d", why, t.raise)
	err := t.PutLeadership(func(rec *nusav1.LeadershipRecord) {
		rec.Term.Number = max(rec.GetTerm().GetNumber(), c.GetKnownTerm())
		rec.Conflict.Recovered = true
		stop := recovery.Longer(durationpb.New(t.State.longestStop()), rec.GetRecovery().GetStopTime())
		rec.Recovery = &nusav1.Recovery{StopTime: stop, Unconfirmed: t.State.toConfirm()}
	})
	if err != nil {
		return err
	}
	return t.Outlasts(c.GetLeaseMax(), c.GetStopTime())
}

// Outlasts notes that a region may hold a lease of this length from before a recovery of the store,
// and may run an instance with this stop time. It changes nothing if no server waits for the end of
// such leases.
func (t *Tx) Outlasts(lease, stop *durationpb.Duration) error {
	return t.PutLeadership(func(rec *nusav1.LeadershipRecord) {
		if r := rec.GetRecovery(); r != nil {
			rec.LeaseMax, r.StopTime = recovery.Longer(rec.GetLeaseMax(), lease), recovery.Longer(r.GetStopTime(), stop)
		}
	})
}

// Confirmed stores that a region runs nothing that the store does not order. It changes nothing if
// the region need not confirm that.
func (t *Tx) Confirmed(name string) error {
	last := false
	err := t.PutLeadership(func(rec *nusav1.LeadershipRecord) {
		r := rec.GetRecovery()
		i := slices.Index(r.GetUnconfirmed(), name)
		if i < 0 {
			return
		}
		r.Unconfirmed = slices.Delete(slices.Clone(r.GetUnconfirmed()), i, i+1)
		last = len(r.GetUnconfirmed()) == 0
	})
	if err == nil && last {
		t.Event("store.confirmed", "", "every region has confirmed what it runs since the recovery: leases are granted again")
	}
	return err
}

// maxRegions bounds the regions of a federation: those that an operator defined, and those that
// connected without a definition. It bounds memory, too: the matrix of round trips takes about 27
// bytes for each ordered pair of regions, which is 0.11 GB at this bound.
const maxRegions = topo.MaxRegions

// ErrTooManyRegions says that a federation has maxRegions regions.
var ErrTooManyRegions = fmt.Errorf("there are %d regions, the most a federation takes", maxRegions)

// PutRegion stores a region.
func (t *Tx) PutRegion(name string, r *nusav1.Region) error {
	if old, _ := t.Region(name); old == nil && len(t.State.Regions)+t.newRegions() >= maxRegions {
		return ErrTooManyRegions
	}
	ch := txChange{key: regionKey(name), msg: r}
	if known := t.State.Regions[name]; known != nil {
		ch.known = known.Revision
	}
	return t.set(ch)
}

// Loss says why a region is lost.
type Loss struct {
	// Why is the reason in one line. By is the operator who states the loss. It is empty for a
	// verdict of the active server.
	Why, By string
	// NothingRuns: all slots may move at once, and another cluster may take the name.
	NothingRuns bool
}

// maxLostAt bounds the times of verdicts that a region's record keeps.
const maxLostAt = 8

// DeclareLost raises a region's fence and marks the region lost. The caller then ends the stream
// with EndLost.
func (t *Tx) DeclareLost(name string, l Loss, now time.Time) error {
	old, _ := t.Region(name)
	if old == nil {
		return status.Errorf(codes.NotFound, "region %q does not exist", name)
	}
	next, _ := region.Step(t.State.SessionConfig(), t.Session(name), t.State.Clock(), region.Declare{Why: l.Why, NothingRuns: l.NothingRuns})
	rec := proto.CloneOf(old)
	SetSession(rec, next.Record)
	rec.Lost = &nusav1.LostRegion{
		At: timestamppb.New(now), Fence: next.Fence, By: l.By, Why: l.Why, NothingRuns: next.NothingRuns,
	}
	if l.By == "" {
		rec.LostAt = append(rec.LostAt, timestamppb.New(now))
		rec.LostAt = rec.LostAt[max(0, len(rec.LostAt)-maxLostAt):]
	}
	message := l.Why
	if l.By != "" {
		message = "by " + l.By + ": " + l.Why
	}
	if err := t.Audit(audit.Entry{Verb: "lose", Kind: "region", Name: name, Region: name, Reason: message}); err != nil {
		return err
	}
	// If another cluster of this name was refused, the statement says nothing about what that
	// cluster runs. Once the loss has made the name free, that cluster confirms what it runs. If
	// that cluster is gone too, an operator can remove the region.
	if r := t.State.Regions[name]; l.NothingRuns && (r == nil || !r.OtherCluster) {
		if err := t.Confirmed(name); err != nil {
			return err
		}
	}
	return t.PutRegion(name, rec)
}

// DeleteRegion removes a region and its checkpoint.
func (t *Tx) DeleteRegion(name string) error {
	known := t.State.Regions[name]
	if known == nil {
		return nil
	}
	for i, part := range known.stored.parts {
		if !part.stored {
			continue
		}
		if err := t.deleteUnchecked(CheckpointKey(name, i)); err != nil {
			return err
		}
	}
	if err := t.Confirmed(name); err != nil {
		return err
	}
	return t.set(txChange{key: regionKey(name), known: known.Revision})
}

// CheckRevision compares a stored record with the revision that a request expects, as
// SubmitRequest.check_revision defines: 0 means any revision, -1 means that no record may exist.
func CheckRevision(what string, check int64, exists bool, revision int64) error {
	switch {
	case check == 0, check == -1 && !exists, check > 0 && exists && check == revision:
		return nil
	case check == -1:
		return status.Errorf(codes.Aborted, "%s exists already, at revision %d", what, revision)
	case !exists:
		return status.Errorf(codes.Aborted, "%s does not exist, but revision %d was asked for", what, check)
	}
	return status.Errorf(codes.Aborted, "%s is at revision %d, not %d: it was changed meanwhile", what, revision, check)
}

// OtherKey returns the key of a record that another package stores. The state does not hold such records.
// kind must not be the first part of another key.
func OtherKey(kind, name string) string { return root + kind + "/" + name }

// PutOther stores a record of another package. Only the functions of that package write the key, so the key
// is not compared.
func PutOther(t *Tx, key string, m proto.Message) error { return t.putUnchecked(key, m) }

// DeleteOther removes a record of another package.
func DeleteOther(t *Tx, key string) error { return t.deleteUnchecked(key) }

// OtherOf returns what the transaction stores under a key of another package. changed is false if it does
// not change the key. m is nil if it removes the record.
func OtherOf(t *Tx, key string) (m proto.Message, changed bool) {
	ch, changed := t.find(key)
	return ch.msg, changed
}

// OthersOf yields the records of a kind that the transaction changes, by name. m is nil if it removes the record.
func OthersOf(t *Tx, kind string) iter.Seq2[string, proto.Message] {
	prefix := OtherKey(kind, "")
	return func(yield func(name string, m proto.Message) bool) {
		for _, ch := range t.changes {
			if name, ok := strings.CutPrefix(ch.key, prefix); ok && !yield(name, ch.msg) {
				return
			}
		}
	}
}

// applyOther passes a record of another package on. The lock is held.
func applyOther(st *State, key string, msg any) {
	kind, name, _ := strings.Cut(strings.TrimPrefix(key, root), "/")
	if rec, _ := msg.(*nusav1.AttemptsRecord); strings.HasPrefix(key, attemptsPrefix) {
		applyAttempts(st, name, rec)
	}
	if apply := st.Others[kind]; apply != nil {
		m, _ := msg.(proto.Message)
		apply(name, m)
	}
}
