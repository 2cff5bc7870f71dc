package state

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/recovery"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/submits"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// ErrForeignStore says that the store does not belong to the server's federation, or no longer
// does.
var ErrForeignStore = errors.New("store of another federation")

// Beginning describes how a leadership term begins.
type Beginning struct {
	// Epoch identifies the term. It differs from the epoch of every other term, also of a term in a
	// store that was restored later.
	Epoch string
	// Revision is the revision of the term's record.
	Revision int64
	// Sessions is the configuration of the regions' sessions. Its ActiveUntil is 0.
	Sessions region.Config
	// LogUnknown is why the store did not tell the length of its log; nil: it did, or it never does.
	LogUnknown error
	// HistoryLater: the term can serve before the history is read: see ReadHistory. The other
	// records show which revisions the earlier terms wrote.
	HistoryLater bool
}

// Elected is what a server knows when it has been elected.
type Elected struct {
	// At is a time after the election, on the server's clock.
	At time.Duration
	// Guard compares the election key.
	Guard store.Compare
	// Federation is the federation that the server belongs to.
	Federation string
	// Known is the greatest revision of the store that the server has ever seen.
	Known int64
	// Lease is the length of the leases that the server grants to regions. Candidacy is how long
	// the server may still grant leases after it has lost its election key.
	Lease, Candidacy time.Duration
}

// BeginTerm stores the number of a new leadership term before anything is served in it.
func BeginTerm(ctx context.Context, s store.Store, e Elected) (Beginning, error) {
	id, ok, _, err := s.Get(ctx, ClusterKey)
	switch {
	case err != nil:
		return Beginning{}, fmt.Errorf("identity of the federation: %w", err)
	case !ok || string(id.Value) != e.Federation:
		return Beginning{}, fmt.Errorf("%w: this server belongs to federation %s, the store to %q: restore the store's data, or restart the server to see what to do", ErrForeignStore, e.Federation, id.Value)
	}
	kv, _, revision, err := s.Get(ctx, leadershipKey)
	if err != nil {
		return Beginning{}, fmt.Errorf("begin a leadership term: %w", err)
	}
	rec := new(nusav1.LeadershipRecord)
	if kv.ModRevision != 0 {
		if err := Decode(kv, rec); err != nil {
			return Beginning{}, err
		}
	}
	later := rec.GetHistoryTracedTerm() == rec.GetTerm().GetNumber() && rec.GetConflict() == nil
	former := e.Candidacy // for a predecessor that stored none
	if rec.GetCandidacy() != nil {
		former = rec.GetCandidacy().AsDuration()
	}
	surplus, logUnknown := s.Surplus(ctx)
	if err := ctx.Err(); err != nil {
		return Beginning{}, fmt.Errorf("begin a leadership term: %w", err)
	}
	if rec.GetConflict().GetRecovered() {
		if err := offerAgain(ctx, s, e.Guard, rec.GetRecovery().GetStopTime()); err != nil {
			return Beginning{}, fmt.Errorf("offer every slot again: %w", err)
		}
		rec.Conflict, rec.Terms = nil, nil // the regions may know any revision from before the recovery
		rec.Log = nil                      // the log of the present store is the right one from now on
	}
	recovery.NoteLog(rec, surplus, revision)
	if e.Known > revision {
		rec.Conflict = recovery.Merge(rec.GetConflict(), &nusav1.RevisionConflict{Known: e.Known, Stored: revision})
	}
	past, earlier := beginningsOf(rec), kv.ModRevision
	if rec.GetTracedTerm() != rec.GetTerm().GetNumber() {
		earlier = revision
	}
	longest := max(e.Lease, rec.GetLeaseMax().AsDuration())
	term := region.Term{Number: rec.GetTerm().GetNumber() + 1, Nonce: strings.ToLower(rand.Text()[:12])}
	rec.Term, rec.TracedTerm = &nusav1.LeadershipTerm{Number: term.Number, Nonce: term.Nonce}, term.Number
	rec.Terms = beginningsToProto(region.Begin(past, term, earlier)) // Load corrects them by the other records
	// Both may be longer for a predecessor that still grants leases: see LowerLimits.
	rec.LeaseMax, rec.Candidacy = durationpb.New(longest), durationpb.New(max(former, e.Candidacy))
	value, err := Encode(rec)
	if err != nil {
		return Beginning{}, err
	}
	began, err := s.Txn(ctx, []store.Compare{e.Guard, store.Mod(leadershipKey, kv.ModRevision)}, []store.Op{store.Put(leadershipKey, value)})
	if err != nil {
		return Beginning{}, fmt.Errorf("begin leadership term %d: %w", term.Number, err)
	}
	return Beginning{
		Epoch: strconv.FormatUint(term.Number, 36) + term.Nonce, Revision: began, LogUnknown: logUnknown, HistoryLater: later,
		Sessions: region.Config{
			Lease: e.Lease, LeaseMax: longest, PredecessorUntil: e.At + former, Federation: e.Federation, Term: term,
		},
	}, nil
}

// offerAgain writes every slot with a new generation, after a recovery and before the conflict
// ends. The regions' logs may have later generations and revisions of a slot than the copy that the
// store was restored from. The regions would skip orders with the lower numbers of the copy.
//
// An owner may run a version that the copy does not have. So a slot that a lease binds moves only
// after the owner has answered that the lease binds what it runs, and after the longest known stop
// time. If the term ends in the middle, the next term begins again.
//
// The last owner of a vacant slot may have owned the slot again, too. So that region has to confirm
// once more that it runs nothing of the slot, unless the region has been removed.
func offerAgain(ctx context.Context, s store.Store, guard store.Compare, stop *durationpb.Duration) error {
	compares, ops, size := []store.Compare{guard}, []store.Op(nil), 0
	write := func() error {
		if len(ops) == 0 {
			return nil
		}
		_, err := s.Txn(ctx, compares, ops)
		compares, ops, size = compares[:1], ops[:0], 0
		return err
	}
	var slots []store.KV
	if _, err := s.List(ctx, slotPrefix, func(kv store.KV) error {
		slots = append(slots, kv)
		return nil
	}); err != nil {
		return err
	}
	defined := map[string]bool{} // by region
	for _, kv := range slots {
		slot := new(nusav1.Slot)
		if err := Decode(kv, slot); err != nil {
			return err
		}
		slot.Generation = 0 // the revision of this write
		if slot.GetRunBegins() {
			slot.Run, slot.RunBegins = kv.ModRevision, false // the run does not change
		}
		// The owner may run a version that the copy does not have. So may a former owner, which may
		// have owned the slot again after the copy was made.
		slot.Unbound = true
		if name := slot.GetRegion(); slot.GetVacant() {
			if _, asked := defined[name]; !asked {
				_, has, _, err := s.Get(ctx, RegionPrefix+name)
				if err != nil {
					return err
				}
				defined[name] = has
			}
			if defined[name] {
				ownedAgain(slot)
			}
		}
		for _, f := range slot.GetFormer() {
			f.MayRun = true
		}
		if slot.GetStopTime() != nil {
			slot.StopTime = recovery.Longer(slot.GetStopTime(), stop)
		}
		value, err := Encode(slot)
		if err != nil {
			return err
		}
		each := 2*len(kv.Key) + len(value) + 64 // the key is compared and written
		if len(ops) == commitOps || size+each > commitBytes {
			if err := write(); err != nil {
				return err
			}
		}
		size += each
		compares, ops = append(compares, store.Mod(kv.Key, kv.ModRevision)), append(ops, store.Put(kv.Key, value))
	}
	return write()
}

// ownedAgain makes the last owner of a vacant slot the owner, which has to confirm that it runs
// nothing of the slot. The confirmation says whether a lost node may run it.
func ownedAgain(s *nusav1.Slot) {
	s.Vacant = false
	s.Former = slices.DeleteFunc(s.Former, func(f *nusav1.FormerOwner) bool { return f.GetRegion() == s.GetRegion() })
}

// longestStop returns the longest kill_timeout of the instances that the regions' leases bind, as
// far as the store knows. The lock is held.
func (st *State) longestStop() (longest time.Duration) {
	for _, j := range st.Jobs {
		for _, g := range j.Place().Groups {
			if g.Bound {
				longest = max(longest, g.StopTime)
			}
		}
		for s := range j.Slots.All() {
			longest = max(longest, s.StopTime)
		}
	}
	return longest
}

// LowerLimits returns the change that lowers the times that a successor has to wait. The change is
// due once every lease that a predecessor may have granted is over. After a recovery of the store,
// everything that such a lease bound must have ended too, and every region must have confirmed what
// it runs. The lock is held.
func (st *State) LowerLimits(lease, candidacy time.Duration) (change func(*nusav1.LeadershipRecord), due bool) {
	rec := st.Leadership
	same := rec.GetLeaseMax().AsDuration() == lease && rec.GetCandidacy().AsDuration() == candidacy && rec.GetRecovery() == nil
	c, now := st.SessionConfig(), st.Clock()
	return func(rec *nusav1.LeadershipRecord) {
		rec.LeaseMax, rec.Candidacy, rec.Recovery = durationpb.New(lease), durationpb.New(candidacy), nil
	}, !same && c.PredecessorsOver(now) && now >= c.GrantsFrom && !c.Unconfirmed
}

// Load reads every record from the store, in several steps. The records of these steps fit
// together, because only the elected server writes them. If Beginning.HistoryLater is set, Load
// leaves out the history.
func (st *State) Load(ctx context.Context, s store.Store) error {
	st.Lock()
	defer st.Unlock()
	st.loading = true
	defer func() { st.loading = false }()
	ctx, cancel := context.WithCancel(ctx)
	var readers errgroup.Group
	defer func() { cancel(); _ = readers.Wait() }()
	var written int64
	for _, next := range readAhead(ctx, &readers, s) {
		part := <-next
		if part.err != nil {
			return fmt.Errorf("load the records: %w", part.err)
		}
		makeRoom(st, part)
		for _, at := range part.order {
			r := &part.parts[at.part][at.i]
			st.apply(r.kv.Key, r.value, r.kv.ModRevision)
			// Candidates change the store too, but regions learn only the revisions of terms.
			st.Revision = max(st.Revision, r.kv.ModRevision)
			if part.prefix != leadershipKey {
				written = max(written, r.kv.ModRevision)
			}
			*r = record{} // it can be collected as garbage
		}
	}
	if err := loadAudit(ctx, st, s); err != nil {
		return fmt.Errorf("load the end of the audit trail: %w", err)
	}
	if _, err := st.Events.Load(ctx, s); err != nil {
		return fmt.Errorf("load the latest events: %w", err)
	}
	st.History.BeginReading()
	if st.historyLater {
		st.Room.Unread = max(1, unreadPart*st.Room.Usage().InUse)
	} else {
		past, err := loadHistory(ctx, st, s)
		if err != nil {
			return fmt.Errorf("load the records: %w", err)
		}
		written = max(written, past)
		st.Revision = max(st.Revision, past)
	}
	st.Sessions.Terms = region.Loaded(beginningsOf(st.Leadership), written)
	for _, r := range st.Regions {
		r.Orders.ForgetUpTo(uint64(st.Revision))
		if err := restoreCheckpoint(st, r); err != nil {
			return err
		}
	}
	st.pendUnsteady()
	st.notePaused(st.Leadership.GetMassLoss())
	if !st.authStored {
		applyAuth(st, nil, 0)
	}
	return st.Origins.rebuild()
}

// records are all records under a prefix, or the error of reading them.
type records struct {
	prefix string
	parts  [][]record
	// order has the places of the records in parts, ordered by revision.
	order []placeOf
	err   error
}

// placeOf is the place of a record with a revision: parts[part][i].
type placeOf struct {
	revision int64
	part, i  int32
}

// readAhead reads the records under all prefixes at the same time, except the history, because the
// store reads the records under one prefix one after another.
func readAhead(ctx context.Context, readers *errgroup.Group, s store.Store) (all []chan records) {
	for _, prefix := range loaded {
		out := make(chan records, 1)
		all = append(all, out)
		readers.Go(func() error {
			out <- readRecords(ctx, s, prefix)
			return nil
		})
	}
	return all
}

// TrimSets returns the memory of sets that were large, for example while the records were loaded: a map
// never gets smaller. The lock is held.
func TrimSets(st *State) {
	for _, set := range []*JobSet{&st.Pending, &st.Fresh, &st.Ended, &st.Rollouts} {
		if len(*set) == 0 {
			*set = JobSet{}
		}
	}
}

// record is a stored record. value is the record in the form that State.apply takes.
type record struct {
	kv    store.KV
	value any
}

// decodeAtOnce is how many records one goroutine decodes at a time.
const decodeAtOnce = 512

// readRecords returns the records under a prefix, ordered by revision, because outboxes are
// numbered by revision. It decodes on all processors while it reads.
func readRecords(ctx context.Context, s store.Store, prefix string) records {
	var parts [][]record
	var decoders errgroup.Group
	decoders.SetLimit(runtime.GOMAXPROCS(0))
	var specs submits.Cache[Spec]
	_, listed := s.List(ctx, prefix, func(kv store.KV) error {
		if n := len(parts); n == 0 || len(parts[n-1]) == decodeAtOnce {
			if n > 0 {
				part := parts[n-1]
				decoders.Go(func() error { return decodeAll(part, &specs) })
			}
			parts = append(parts, make([]record, 0, decodeAtOnce))
		}
		last := &parts[len(parts)-1]
		*last = append(*last, record{kv: kv})
		return nil
	})
	if n := len(parts); n > 0 {
		decoders.Go(func() error { return decodeAll(parts[n-1], &specs) })
	}
	if err := errors.Join(listed, decoders.Wait()); err != nil {
		return records{prefix: prefix, err: err}
	}
	return records{prefix: prefix, parts: parts, order: byRevision(parts)}
}

// byRevision returns the places of records ordered by revision, those of one revision in their present
// order. It sorts numbers, because a record is large.
func byRevision(parts [][]record) (order []placeOf) {
	n := 0
	for _, part := range parts {
		n += len(part)
	}
	order = make([]placeOf, 0, n)
	for n, part := range parts {
		for i := range part {
			order = append(order, placeOf{part[i].kv.ModRevision, int32(n), int32(i)})
		}
	}
	slices.SortFunc(order, func(a, b placeOf) int {
		return cmp.Or(cmp.Compare(a.revision, b.revision), cmp.Compare(a.part, b.part), cmp.Compare(a.i, b.i))
	})
	return order
}

// makeRoom allocates at once what records under a prefix will need. The lock is held.
func makeRoom(st *State, part records) {
	switch part.prefix {
	case jobPrefix:
		st.Jobs = make(map[JobKey]*Job, len(part.order))
	case slotPrefix:
		n := map[string]int{}
		for _, part := range part.parts {
			for i := range part {
				if s, ok := part[i].value.(*region.Slot); ok {
					n[s.Region]++
				}
			}
		}
		for name, slots := range n {
			if r := st.Regions[name]; r != nil {
				r.Orders.Grow(slots)
			}
		}
	}
}

// decodeAll decodes the values of records. specs is shared by the records of jobs.
func decodeAll(records []record, specs *submits.Cache[Spec]) error {
	var slots []region.Slot
	var reader slotReader
	for i := range records {
		r := &records[i]
		if strings.HasPrefix(r.kv.Key, slotPrefix) {
			if slots == nil {
				slots = make([]region.Slot, len(records))
			}
			var err error
			if slots[i], err = reader.slot(r.kv); err != nil {
				return err
			}
			r.value = &slots[i]
		} else if err := decodeOne(r, specs); err != nil {
			return err
		}
		r.kv.Value = nil
	}
	return nil
}

func decodeOne(r *record, specs *submits.Cache[Spec]) (err error) {
	msg := newRecord(r.kv.Key)
	switch msg.(type) {
	case *nusav1.JobRecord:
		r.value, err = loadRecord(r.kv, specs)
	case *nusav1.CheckpointRecord:
		r.value, err = loadCheckpoint(r.kv)
	default:
		r.value, err = msg, Decode(r.kv, msg)
	}
	return err
}

// pendUnsteady makes the loaded jobs pending, except those that the placer would leave as they are. Otherwise the
// first plan of a term would have every job, and the first new job would wait for it. The lock is held.
func (st *State) pendUnsteady() {
	for k := range st.Pending {
		if j := st.Jobs[k]; j != nil && st.steady(j) {
			delete(st.Pending, k)
			delete(st.Fresh, k)
		}
	}
	for k, j := range st.Jobs {
		if j.Record != nil && !st.steady(j) {
			st.Pend(k)
		}
	}
}

// steady reports whether each instance of a job has a region that owns it in the present version, and
// nothing about the job or these regions is in change. The placer does not plan such a job until
// something changes. The lock is held.
func (st *State) steady(j *Job) bool {
	if j.Record == nil || j.Record.Stopped() || j.Record.Type() == place.System || !j.firstVersion() {
		return false
	}
	missing := 0
	for i := range j.Place().Groups {
		g := &j.Place().Groups[i]
		if g.Parallel > 0 {
			return false
		}
		missing += g.Count
	}
	for s := range j.Slots.All() {
		g, r := j.Place().Group(s.Group), st.Regions[s.Region]
		if g == nil || s.To > g.Count || s.Desired != region.DesiredRun || s.System || s.Parallel > 0 || s.Hold > 0 || s.UnlessConnected ||
			s.State != region.Offered && s.State != region.Accepted || j.needsPlacer(&s) || IsMoved(&s) {
			return false
		}
		if r == nil || r.Record.GetLost() != nil || r.Record.GetDraining() || r.Record.GetReturning() {
			return false
		}
		missing -= s.Count()
	}
	return missing == 0 // the slots of a group do not overlap
}
