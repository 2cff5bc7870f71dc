package state

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/events"
	"github.com/nusa-scheduler/nusa/global/forms"
	"github.com/nusa-scheduler/nusa/global/history"
	"github.com/nusa-scheduler/nusa/global/idempotency"
	"github.com/nusa-scheduler/nusa/global/latency"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/recovery"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/room"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/internal/notify"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/topology"
)

// JobSet is a set of jobs.
type JobSet map[JobKey]struct{}

// State holds everything that the active server knows. Its durable part changes only in apply, at
// load and after a committed transaction. Its soft part belongs to the regions' sessions and to the
// placer. Each leadership term has a new State.
//
// Messages in a State are never changed in place, only replaced. So code that read a pointer under
// the lock may use the message without the lock.
type State struct {
	// Mutex guards all fields that change, also those of the jobs, regions and sessions. "The lock
	// is held" in a comment means this lock.
	sync.Mutex
	// Epoch identifies this leadership term. The positions of its streams contain it.
	Epoch    string
	Revision int64
	Jobs     map[JobKey]*Job
	Regions  map[string]*Region
	// Latency is the matrix of round trips between regions.
	Latency *latency.Matrix
	Origins Origins
	// Webhooks are the endpoints for events.
	Webhooks Webhooks
	// Auth is who may do what. It is nil until the records are loaded, and if they cannot be read. It
	// may be read without the lock. AuthChanged is when it changed last.
	Auth        atomic.Pointer[rights.Set]
	AuthChanged time.Duration
	authHash    uint64 // of the message of Auth
	authStored  bool   // Auth was set
	// Room counts what jobs take, and what is left for jobs.
	Room room.Room
	// Trail counts the audit records. AuditTree is the tree of all entries in the store.
	Trail     room.Trail
	AuditTree audit.Tree
	// Self is the name of this server in the audit trail.
	Self string
	// Demand holds the asks of the groups of all jobs.
	Demand Demand
	// PeersChanged: the peers of the regions have changed, and the regions must be sent the
	// changes. PeersDue wakes the loop that sends them. PeersDue has capacity 1.
	PeersChanged bool
	PeersDue     chan struct{}
	// Pending are the jobs that the placer has to plan. Fresh are those that came into Pending, or
	// changed there, since the placer last took Fresh. Pend adds to both.
	Pending, Fresh JobSet
	// Openings counts the changes of records after which a job that found no room may find some: every
	// change of a region or an origin, a job that changes, and a slot that gives room back. A new job
	// and its first slots only take room, so they do not count.
	Openings uint64
	// Purge are the stopped jobs that are to be removed once no region owns a slot of them.
	Purge JobSet
	// Ended are the jobs without a stored result that may have ended.
	Ended JobSet
	// Rollouts are the jobs whose rollouts must be evaluated again.
	Rollouts JobSet
	// Near are the jobs with near rules. Bounds has what these rules are.
	Near   JobSet
	Bounds Bounds
	// Moved are the jobs with slots that a verdict moved to other regions. MovedChanges grows with
	// each change of such a slot, and with each change of a region's record.
	Moved        JobSet
	MovedChanges uint64
	// NotHome holds, by the name of the home (Slot.Home), the jobs with slots that are not at their
	// home. A set may contain a job whose slots have returned since.
	NotHome map[string]JobSet
	// MovesBegan: an operator lets slots leave a region or return to one, and the placer has not
	// noticed that yet.
	MovesBegan bool
	// ProbeDemand is the weight of each pair of regions that near rules ask about, by region and
	// peer. ProbeDemandStale: the weights must be computed again.
	ProbeDemand      map[string]map[string]float64
	ProbeDemandStale bool
	// History has the jobs that have left memory, see history.go. Names has the names of all jobs.
	History history.History
	Names   history.Names
	// Answers holds the responses to requests with idempotency keys.
	Answers *idempotency.Answers
	// Changed wakes watches. changedJobs are the jobs that have changed since TakeChanged; nil: nobody follows them.
	Changed     notify.Signal
	changedJobs JobSet
	Events      Events
	// Clock returns the time since a fixed moment.
	Clock func() time.Duration
	// Movable are the slots of lost regions that may move now, according to the latest step of the
	// failover loop.
	Movable map[JobKey][]place.Movable
	// FailoverPaused is the alarm of a mass loss, during which nothing moves to other regions. ""
	// means no mass loss.
	FailoverPaused string
	// Sessions is the configuration of the regions' sessions, except what SessionConfig adds. It
	// changes at each proof of leadership.
	Sessions region.Config
	// Others get the records of other packages once a transaction has stored them, by the kind of their
	// keys: see OtherKey. m is nil for a removed record. They are called with the lock, and are set
	// before the term serves.
	Others map[string]func(name string, m proto.Message)
	// ObjectAlarms are what an operator has to do about objects of other packages, by their kind.
	ObjectAlarms map[string]string
	// Forms has the forms of the config of the regions' plugins.
	Forms forms.Book
	// Templates are the jobs that begin runs. Letters are those that may leave dead letters.
	Templates Templates
	Letters   Letters
	// Leadership is the stored record of the leadership term.
	Leadership *nusav1.LeadershipRecord

	// LogUnknown: the store has not reported the length of its log in this term, so the store may be a
	// restored snapshot. Until then no lease is granted and no region is declared lost. See OldCopy.
	// logAlarm is the alarm while that has lasted for longer than a lease. "" means none.
	LogUnknown bool
	logAlarm   string
	// KnownRegions names the regions that connected before this term, as far as this server has seen.
	KnownRegions []string

	// Candidates is the number of servers that stand for election, including the active one.
	// GlobalLevel is the least of their feature levels.
	Candidates  int
	GlobalLevel uint32
	placed      placedRegions
	// systems are the system jobs. attempts are the records of retries, by job and group.
	systems            JobSet
	attempts           map[JobKey]map[string]*nusav1.AttemptsRecord
	leadershipRevision int64
	// reported is what the regions run. See NoteWork.
	reported map[string]reportedWork
	// holds are the instances that regions were asked to hold, by region.
	holds map[string][]holding
	// serverAlarms are what SetServerAlarms noted last.
	serverAlarms []string
	// refusedUnknown is the latest refusal of an unknown region.
	refusedUnknown string

	// began is when this server became the active one. massLossAt is when the failover loop last
	// saw a mass loss; 0: never.
	began, massLossAt time.Duration
	// slotChanges is the number of the latest change in any Region.Changes.
	slotChanges uint64
	// historyLater: Load leaves out the history.
	historyLater bool
	// leaving are the jobs that may have ended, the oldest end first. leftover are the jobs in the
	// history that still have slots.
	leaving  []leaving
	leftover JobSet
	// recalled are jobs in the history whose records were read recently. pastWatched wakes the
	// watches of jobs in the history, by name.
	recalled    recalls
	pastWatched map[string]*notify.Signal

	names   []string // names of the regions; nil after a region was added or removed
	stamp   uint64   // number of the latest change
	loading bool
	// auditRevision is the revision of the record of AuditTree. auditKeys: this term has stored keys
	// for the checkpoints of the audit trail.
	auditRevision int64
	auditKeys     bool
	// audits is the number of audit records of this term. See Tx.sealAudit.
	audits uint64
	// audited is the beginning of the latest audit key.
	audited string
}

// New returns the empty state of a term.
func New(b Beginning, clock func() time.Duration) *State {
	st := &State{
		Epoch: b.Epoch, Clock: clock, Sessions: b.Sessions,
		Jobs: map[JobKey]*Job{}, Regions: map[string]*Region{}, Templates: Templates{Lines: map[JobKey]string{}, Semaphores: map[JobKey]int32{}, changed: JobSet{}, steps: JobSet{}},
		Pending: JobSet{}, Fresh: JobSet{}, Purge: JobSet{}, Ended: JobSet{}, Rollouts: JobSet{}, Near: JobSet{}, Bounds: Bounds{map[*place.Group]nearGroups{}, map[BoundAt]int{}}, Moved: JobSet{}, leftover: JobSet{}, systems: JobSet{}, attempts: map[JobKey]map[string]*nusav1.AttemptsRecord{}, holds: map[string][]holding{}, NotHome: map[string]JobSet{},
		Events: Events{events.New(events.Config{Federation: cmp.Or(b.Sessions.Federation, b.Epoch), Age: events.DefaultAge})}, began: clock(), PeersDue: make(chan struct{}, 1), LogUnknown: b.LogUnknown != nil, historyLater: b.HistoryLater,
	}
	st.Latency = latency.New(st.topologyRegions)
	st.Answers = idempotency.New(idempotency.Config{Prefix: idemPrefix, Clock: clock, Decode: func(kv store.KV, rec *nusav1.IdempotencyRecord) error {
		return Decode(kv, rec)
	}})
	return st
}

// SessionConfig returns the present configuration of the regions' sessions. The lock is held.
func (st *State) SessionConfig() region.Config {
	c := st.Sessions
	c.Revision, c.Conflict = st.Revision, st.Leadership.GetConflict() != nil
	if r := st.Leadership.GetRecovery(); r != nil {
		c.LeaseMax = max(c.LeaseMax, st.Leadership.GetLeaseMax().AsDuration())
		c = c.AfterRecovery(r.GetStopTime().AsDuration())
		c.Unconfirmed = len(r.GetUnconfirmed()) > 0
	}
	c.Unconfirmed, c.LogUnknown = c.Unconfirmed || st.LogUnknown, st.AwaitsLog()
	return c
}

// AwaitsLog reports whether the store may be a restored snapshot: an earlier term has stored the
// length of the store's log, and in this term the store has not reported it. The lock is held.
func (st *State) AwaitsLog() bool { return st.LogUnknown && st.Leadership.GetLog() != nil }

// OldCopy reports whether the store is, or may be, an old copy, so that nothing is placed. The lock
// is held.
func (st *State) OldCopy() bool { return st.Leadership.GetConflict() != nil || st.AwaitsLog() }

// NoteLogUnknown raises the alarm that the store does not tell the length of its log. err is why. It
// reports whether the alarm is new.
func (st *State) NoteLogUnknown(err error) (alarm string, fresh bool) {
	st.Lock()
	defer st.Unlock()
	if st.logAlarm != "" {
		return st.logAlarm, false
	}
	st.logAlarm = recovery.LogAlarm(err, st.AwaitsLog())
	st.Events.Add("store.log_unknown", "store", "%s", st.logAlarm)
	return st.logAlarm, true
}

// LogReported notes that the store has reported the length of its log, and that the records are
// about this log. The lock is held.
func (st *State) LogReported() {
	if st.logAlarm != "" {
		st.Events.Add("store.log_known", "store", "the store has reported the length of its log")
	}
	st.LogUnknown, st.logAlarm = false, ""
}

// Serving reports whether this server may place, order and grant now: no other server can be the
// active one, and the store is not known to be an old copy. The lock is held.
func (st *State) Serving() bool { return st.SessionConfig().Serving(st.Clock()) }

// Notify wakes watches and returns the number of the change. The lock is held.
func (st *State) Notify() uint64 {
	st.stamp++
	st.Changed.Notify()
	return st.stamp
}

// JobChanged wakes the watches of a job and the watches of everything. The lock is held.
func (st *State) JobChanged(j *Job) {
	noteChanged(st, j.Key)
	j.changed(st.Notify())
}

// JobRecord returns a job's stored record and its revision, or nil and 0 if there is none. The lock
// is held.
func (st *State) JobRecord(k JobKey) (*Record, int64) {
	if j := st.Jobs[k]; j != nil {
		return j.Record, j.Revision
	}
	return nil, 0
}

// RegionNames returns the sorted names of all regions. The caller must not change the list. The
// lock is held.
func (st *State) RegionNames() []string {
	if st.names == nil {
		st.names = slices.Sorted(maps.Keys(st.Regions))
	}
	return st.names
}

// topologyRegions returns the regions in the form that the latency matrix takes. The lock is held.
func (st *State) topologyRegions() []topology.Region {
	out := make([]topology.Region, 0, len(st.Regions))
	for _, r := range st.Regions {
		out = append(out, r.toTopology())
	}
	return out
}

// TopologyView returns the present view of the round trips. The lock is held.
func (st *State) TopologyView() *topology.View { return st.TopologyCache().View }

// TopologyCache returns the present view with its routers. The lock is held.
func (st *State) TopologyCache() *latency.Cache { return st.Latency.Cache(st.Clock()) }

// job returns a job. If it does not exist, job makes an empty one. The lock is held.
func (st *State) job(k JobKey) *Job {
	j := st.Jobs[k]
	if j == nil {
		j = &Job{Key: k}
		st.Jobs[k] = j
	}
	return j
}

// Pend makes a job pending. The lock is held.
func (st *State) Pend(k JobKey) { st.Pending[k], st.Fresh[k] = struct{}{}, struct{}{} }

// forgetIfGone removes a job when none of its records is left. The lock is held.
func (st *State) forgetIfGone(j *Job) {
	if j.Record != nil || j.Slots.Len() > 0 || j.Result != nil || j.Healthy != nil || j.StoredRollout != nil {
		return
	}
	delete(st.Jobs, j.Key)
	noteChanged(st, j.Key)
	j.changed(st.stamp)
	for _, set := range []JobSet{st.Pending, st.Fresh, st.Purge, st.Ended, st.Rollouts, st.Moved, st.leftover, st.systems} {
		delete(set, j.Key)
	}
	for _, jobs := range st.NotHome {
		delete(jobs, j.Key)
	}
}

// PeersChange wakes the loop that sends all regions the changes of their peers. The lock is held.
func (st *State) PeersChange() {
	st.PeersChanged = true
	select {
	case st.PeersDue <- struct{}{}:
	default:
	}
}

// RegionsChanged makes all regions get their peers again, and makes the jobs pending that depend on
// the set of regions. The lock is held.
func (st *State) RegionsChanged() {
	st.Notify()
	st.Latency.RegionsChanged()
	st.ProbeDemandStale = true
	st.PeersChange()
	maps.Copy(st.Pending, st.systems)
	maps.Copy(st.Fresh, st.systems)
	st.Openings++
}

// Sight returns the present knowledge about regions that are cut off. It is valid while the lock is
// held.
func (st *State) Sight() Sight { return Sight{st, st.Clock()} }

// Alarms returns the alarms that an operator has to act on, one line each.
func (st *State) Alarms() (out []string) {
	st.Lock()
	defer st.Unlock()
	if st.FailoverPaused != "" {
		out = append(out, st.FailoverPaused)
	}
	if note := UnreadNote(st); note != "" {
		out = append(out, note)
	}
	out = append(out, st.Room.Alarms()...)
	out = append(out, st.serverAlarms...)
	conflict := recovery.Text(st.Leadership.GetConflict())
	if conflict != "" {
		out = append(out, conflict)
	}
	for _, alarm := range []string{st.logAlarm, st.Webhooks.Alarm} {
		if alarm != "" {
			out = append(out, alarm)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(st.ObjectAlarms)) {
		out = append(out, st.ObjectAlarms[kind])
	}
	for _, name := range st.RegionNames() {
		if why := st.Regions[name].Refused; why != "" {
			out = append(out, why)
		}
	}
	c, now := st.SessionConfig(), st.Clock()
	for _, alarm := range []string{recovery.Waits(c.ServesFrom-now, c.GrantsFrom-now), recovery.Alarm(st.Unconfirmed())} {
		if alarm != "" && conflict == "" {
			out = append(out, alarm)
		}
	}
	return out
}

// SetServerAlarms notes what an operator has to do about global servers and members of the store.
func (st *State) SetServerAlarms(alarms []string) {
	st.Lock()
	defer st.Unlock()
	for _, text := range alarms {
		if !slices.Contains(st.serverAlarms, text) {
			st.Events.Add("server.alarm", "", "%s", text)
		}
	}
	for _, text := range st.serverAlarms {
		if !slices.Contains(alarms, text) {
			st.Events.Add("server.alarm_over", "", "%s", text)
		}
	}
	st.serverAlarms = alarms
}

// SetUsage stores how full the store is, adds an event about a change, and returns its text: see room.Room.Measured.
func (st *State) SetUsage(use room.Usage) (text string, worse bool) {
	st.Lock()
	defer st.Unlock()
	text, worse = st.Room.Measured(use)
	if text != "" {
		st.Events.Add("store.filling", "store", "%s", text)
	}
	return text, worse
}

// Usage returns how full the store is.
func (st *State) Usage() *nusav1.StoreUsage {
	st.Lock()
	defer st.Unlock()
	r, use := &st.Room, st.Room.Usage()
	return &nusav1.StoreUsage{
		Keys: r.Keys + st.Trail.Records + int64(st.Answers.Len()), Bytes: use.Bytes, UsedBytes: use.InUse, QuotaBytes: use.Quota,
		Jobs: r.Jobs, JobBytes: r.JobBytes, JobLimitBytes: r.Limits.Jobs, NamespaceLimitBytes: r.Limits.Namespace, JobsLeft: r.Left(),
	}
}

// NoteRefused stores why a region without a session is refused. It reports whether the reason is
// new, without regard to numbers in the text, which may change each time. The lock is held.
func (st *State) NoteRefused(name, why string) bool {
	r, why := st.Regions[name], "refused: "+why
	switch {
	case r == nil:
		was := st.refusedUnknown
		st.refusedUnknown = name + " " + why
		return was != st.refusedUnknown
	case r.Session != nil:
		return false
	}
	known := reason.WithoutNumbers(r.Refused) == reason.WithoutNumbers(why)
	r.Refused = why
	if !known {
		r.Stamp = st.Notify()
	}
	return !known
}

// NoticeSilence adds an event for each region that begins or ceases to count as cut off. It wakes
// the watches of these regions and of the jobs that have slots there. It also wakes them when it
// becomes known what will happen to these slots.
func (st *State) NoticeSilence() {
	st.Lock()
	defer st.Unlock()
	see := st.Sight()
	changed := map[string]int{}
	for name, r := range st.Regions {
		outlook := SlotFailover{}
		if f := r.Failover; f != nil {
			outlook = SlotFailover{Moves: f.Moves, Due: f.Due}
		}
		_, cut := see.CutOff(name)
		_, awaited := see.Awaited(name)
		// Each step of the failover loop computes the time again, with a small difference.
		same := outlook.Moves == r.shownFailover.Moves && (outlook.Due-r.shownFailover.Due).Abs() < time.Second
		if cut != (r.cutSince != nil) || awaited != r.shownAwaited || !same {
			r.shownFailover, r.shownAwaited = outlook, awaited
			changed[name] = 0
		}
	}
	if len(changed) == 0 {
		return
	}
	st.wakeWatchesOf(changed)
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		r := st.Regions[name]
		silent, cut := see.CutOff(name)
		switch {
		case cut && r.cutSince == nil:
			since := see.now - silent
			r.cutSince = &since
			st.Events.Add("region.silent", name, "no message for %s: what its instances do is unknown (jobs: %d)", jobstatus.Span(silent), changed[name])
		case !cut && r.cutSince != nil:
			st.Events.Add("region.back", name, "after %s of silence", jobstatus.Span(see.now-*r.cutSince))
			r.cutSince = nil
		}
	}
}

// wakeWatchesOf wakes the watches of regions, and of the jobs that have slots in them. It stores
// the number of these jobs for each region in the map.
func (st *State) wakeWatchesOf(regions map[string]int) {
	stamp := st.Notify()
	for name := range regions {
		st.Regions[name].Stamp = stamp
	}
	for _, j := range st.Jobs {
		for _, name := range j.touches() {
			if n, among := regions[name]; among {
				regions[name] = n + 1
				noteChanged(st, j.Key)
				j.changed(stamp)
			}
		}
	}
}

// chargeAll charges all slots of a region that its report does not include. The lock is held.
func (st *State) chargeAll(name string) {
	for _, j := range st.Jobs {
		for s := range j.Slots.All() {
			if s.Region == name || s.ReturnTo == name {
				st.charge(j.Place(), &s)
			}
		}
	}
}
