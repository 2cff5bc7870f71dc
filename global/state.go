package global

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/eventlog"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/origins"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// removalsKept is how many removed slots a region's outbox remembers; a region
// that missed more gets the full set.
const removalsKept = 4096

// State is what the active server knows. The durable part changes only in
// apply, at load and after a committed transaction; the soft part belongs to
// the sessions. A fresh one is made at each election.
//
// Messages in it are never changed in place, only replaced: whoever took a
// pointer under mu may read it without.
type State struct {
	mu sync.Mutex
	// Epoch numbers this reign: the positions of its streams start with it.
	Epoch    string
	Revision int64
	Jobs     map[JobKey]*Job
	Regions  map[string]*Region
	matrix   matrix
	// originRecords by domain, and the table of them.
	originRecords map[string]originRecord
	origins       *origins.Table
	// asks of all jobs, for the shape subscriptions.
	asks map[uint64]*askState
	// Pending are the jobs the placer has to look at.
	Pending map[JobKey]struct{}
	// Recent are jobs with slots that some report does not charge for yet.
	Recent map[JobKey]struct{}
	// Purge are stopped jobs that are to be forgotten.
	Purge map[JobKey]struct{}
	// Ended are jobs whose end is not stored yet.
	Ended map[JobKey]struct{}
	// Rollouts are jobs whose rollout has to be judged anew.
	Rollouts map[JobKey]struct{}
	// changed is closed and replaced when anything a watch shows has changed.
	changed chan struct{}
	stamp   uint64
	// explained are the jobs with full explanations, oldest first.
	explained []JobKey
	asksDirty bool
	// Near are the jobs with near rules; see near.go.
	Near             map[JobKey]struct{}
	ProbeDemand      map[string]map[string]float64
	ProbeDemandStale bool
	// followedAt is when breaches were last looked at.
	followedAt time.Duration
	// recentKeys are idempotency keys written lately.
	recentKeys recentSet
	loading    bool
	// audits counts the notes of this reign; see tx.audit.
	audits       uint64
	Events       Events
	Clock        func() time.Duration
	RegionConfig region.Config
}

// Job is a job with its slots and what regions say about it.
type Job struct {
	Key      JobKey
	Record   *nusav1.JobRecord // nil: slots of a job that is gone
	Revision int64
	// EncodedSpec is the encoded JobSpec, as regions get it.
	EncodedSpec []byte
	// Spec is the job as the placer sees it, without slots.
	Spec      place.Job
	asks      []uint64
	Slots     map[string]region.Slot // by Slot.Key
	Summaries map[string]*nusav1.JobSummary
	Result    *nusav1.ResultRecord
	resultRev int64
	// Healthy is the latest version that ran whole; see rollout.go.
	Healthy *nusav1.JobRecord
	// Changes grows with each durable change of the job or its slots.
	Changes uint64
	// Stamp is the state's at the latest change that a watch shows.
	Stamp     uint64
	Decisions map[string]Decision // by group
	Breaches  []place.Breach
	Unplaced  map[string]*unplaced // by group
	Released  []released           // oldest first
	// RolloutWaits says of regions why a new version has not reached them, as the latest
	// plan said.
	RolloutWaits map[string]string
	// Moves are what the latest plan said of those that are sustained.
	Moves   []place.Move
	MovesAt time.Duration
}

// Region is a region with its session, if it has one.
type Region struct {
	Name     string
	Record   *nusav1.Region
	Revision int64
	Life     region.State
	// Session is the live one; nil while nobody speaks for the region.
	Session *session
	Orders  *link.Outbox[*nusav1.SlotOrder]

	Report   *nusav1.RegionReport
	ReportAt time.Duration
	// ReportStale: it comes from a checkpoint, and is older than ReportAt by who
	// knows how much.
	ReportStale   bool
	Reports       uint64 // reports received over all sessions
	Load          Track
	Master        string
	MasterAddress string
	Version       string
	Servers       []*nusav1.RegionalServer
	Coordinate    *nusav1.Coordinate
	// SummariesAt is where the region's summaries stand; the position to resume.
	SummariesAt   link.Position
	SummaryKeys   map[string]struct{}        // keys of summaries held
	CheckpointDue bool                       // summaries or report changed since the checkpoint
	checkpoint    []*nusav1.CheckpointRecord // while loading
	chunks        int                        // records of the stored checkpoint
	Stamp         uint64
	Refusals      []Refusal
	// Disconnected are the instances of jobs that may still run on lost nodes and fit no
	// other, as told in the present session.
	Disconnected map[JobKey][]*nusav1.DisconnectedInstances
}

func New(epoch string, clock func() time.Duration, lease time.Duration) *State {
	return &State{
		Epoch: epoch, Clock: clock, RegionConfig: region.Config{Lease: lease},
		Jobs: map[JobKey]*Job{}, Regions: map[string]*Region{}, asks: map[uint64]*askState{},
		Pending: map[JobKey]struct{}{}, Recent: map[JobKey]struct{}{},
		Purge: map[JobKey]struct{}{}, Ended: map[JobKey]struct{}{}, Rollouts: map[JobKey]struct{}{},
		changed: make(chan struct{}), Events: Events{eventlog.New(epoch)}, matrix: newMatrix(),
		originRecords: map[string]originRecord{}, Near: map[JobKey]struct{}{},
	}
}

// Notify wakes watches and answers the stamp of the change. mu is held.
func (st *State) Notify() uint64 {
	st.stamp++
	close(st.changed)
	st.changed = make(chan struct{})
	return st.stamp
}

func (st *State) JobRecord(k JobKey) (*nusav1.JobRecord, int64) {
	if j := st.Jobs[k]; j != nil {
		return j.Record, j.Revision
	}
	return nil, 0
}

// Job finds a job, making an empty one. mu is held.
func (st *State) job(k JobKey) *Job {
	j := st.Jobs[k]
	if j == nil {
		j = &Job{Key: k, Slots: map[string]region.Slot{}, Summaries: map[string]*nusav1.JobSummary{}}
		st.Jobs[k] = j
	}
	return j
}

// apply takes a written or loaded record (nil = removed) into the state. mu is
// held.
func (st *State) apply(key string, msg proto.Message, revision int64) {
	switch {
	case strings.HasPrefix(key, jobPrefix):
		namespace, name, _ := strings.Cut(key[len(jobPrefix):], "/")
		rec, _ := msg.(*nusav1.JobRecord)
		st.applyJob(JobKey{namespace, name}, rec, revision)
	case strings.HasPrefix(key, SlotPrefix):
		slot, _ := msg.(*nusav1.Slot)
		st.applySlot(key[len(SlotPrefix):], slot, revision)
	case strings.HasPrefix(key, regionPrefix):
		rec, _ := msg.(*nusav1.Region)
		st.applyRegion(key[len(regionPrefix):], rec, revision)
	case strings.HasPrefix(key, resultPrefix):
		namespace, name, _ := strings.Cut(key[len(resultPrefix):], "/")
		rec, _ := msg.(*nusav1.ResultRecord)
		if j := st.Jobs[JobKey{namespace, name}]; j != nil || rec != nil {
			j = st.job(JobKey{namespace, name})
			j.Result, j.resultRev = rec, revision
			st.forget(j)
		}
	case strings.HasPrefix(key, HealthyPrefix):
		namespace, name, _ := strings.Cut(key[len(HealthyPrefix):], "/")
		rec, _ := msg.(*nusav1.JobRecord)
		if j := st.Jobs[JobKey{namespace, name}]; j != nil || rec != nil {
			j = st.job(JobKey{namespace, name})
			j.Healthy = rec
			st.forget(j)
		}
	case strings.HasPrefix(key, originPrefix):
		rec, _ := msg.(*nusav1.OriginRecord)
		st.applyOrigin(key[len(originPrefix):], rec, revision)
	case strings.HasPrefix(key, idemPrefix):
		st.recentKeys.add(key)
	case strings.HasPrefix(key, CheckpointPrefix):
		name, chunk, _ := strings.Cut(key[len(CheckpointPrefix):], "/")
		rec, _ := msg.(*nusav1.CheckpointRecord)
		n, err := strconv.Atoi(chunk)
		r := st.Regions[name]
		if err != nil || r == nil || rec == nil {
			return
		}
		r.chunks = max(r.chunks, n+1)
		if st.loading {
			r.checkpoint = append(r.checkpoint, rec)
		}
	}
}

func (st *State) applyJob(k JobKey, rec *nusav1.JobRecord, revision int64) {
	j := st.job(k)
	j.Changes++
	if j.Record != nil {
		st.forgetRefusals(k)
	}
	st.dropAsks(j)
	delete(st.Near, k)
	st.ProbeDemandStale = true
	j.Record, j.Revision = rec, revision
	j.keepExplained(rec)
	j.forgetUnplaced(rec)
	j.Stamp = st.Notify()
	st.Pending[k] = struct{}{}
	if rec == nil {
		j.EncodedSpec, j.Spec = nil, place.Job{}
		st.forget(j)
		return
	}
	j.EncodedSpec, _ = EncodeSpec(rec) // of a record that was encoded or decoded just now
	j.Spec = PlaceJob(rec, revision)
	if !rec.GetJob().GetStopped() {
		st.addAsks(j)
		if HasNear(j.Spec) {
			st.Near[k] = struct{}{}
		}
	}
	if rec.GetPurge() {
		st.Purge[k] = struct{}{}
	}
}

// keepExplained keeps the decisions that put instances where they are: a new
// version leaves them there, and what it needs is explained anew.
func (j *Job) keepExplained(rec *nusav1.JobRecord) {
	groups := rec.GetJob().GetSpec().GetGroups()
	for name, e := range j.Decisions {
		if e.Pending = nil; groups[name] == nil {
			delete(j.Decisions, name)
			continue
		}
		j.Decisions[name] = e
	}
}

// forget drops a job of which nothing is left.
func (st *State) forget(j *Job) {
	if j.Record == nil && len(j.Slots) == 0 && j.Result == nil && j.Healthy == nil {
		delete(st.Jobs, j.Key)
		for _, set := range []map[JobKey]struct{}{st.Pending, st.Recent, st.Purge, st.Ended, st.Rollouts} {
			delete(set, j.Key)
		}
	}
}

func (st *State) applySlot(key string, msg *nusav1.Slot, revision int64) {
	parts := strings.SplitN(key, "/", 3)
	if len(parts) != 3 {
		return
	}
	k := JobKey{parts[0], parts[1]}
	j := st.job(k)
	j.Changes++
	j.Stamp = st.Notify()
	if _, near := st.Near[k]; near {
		st.ProbeDemandStale = true
	}
	old, had := j.Slots[key]
	if msg == nil {
		delete(j.Slots, key)
		if had {
			st.orderRemoved(old, revision)
			st.Ended[k], st.Rollouts[k] = struct{}{}, struct{}{} // perhaps it was only waited for
		}
		st.Pending[k] = struct{}{}
		st.forget(j)
		return
	}
	s := SlotFromProto(key, msg, revision)
	if had && old.Region != s.Region {
		st.orderRemoved(old, revision)
	}
	j.Slots[key] = s
	if s.State == region.Offered && s.Generation == revision || s.Desired == region.DesiredRevoke {
		st.Recent[k] = struct{}{}
	}
	if !had || old.From != s.From || old.To != s.To || j.needsPlacer(s) {
		st.Pending[k] = struct{}{} // a split leaves indices without an owner
	}
	if s.State == region.Done {
		st.Ended[k] = struct{}{}
	}
	st.Rollouts[k] = struct{}{}
	if r := st.Regions[s.Region]; r != nil {
		// A slot of an older version keeps its spec until the placer rewrites it.
		spec := j.EncodedSpec
		if prev, held := r.Orders.Get(s.WireKey()); held && prev.GetSlot().GetJobVersion() == s.JobVersion {
			spec = prev.GetSpec()
		}
		r.Orders.PutAt(uint64(revision), s.WireKey(), &nusav1.SlotOrder{Slot: SlotToProto(s), Spec: spec, Revision: revision})
		r.Wake()
	}
}

// needsPlacer says whether a slot is not as the job's present version wants it.
func (j *Job) needsPlacer(s region.Slot) bool {
	if j.Record == nil || j.Record.GetJob().GetStopped() {
		return s.Desired == region.DesiredRun
	}
	return s.JobVersion != j.Record.GetJob().GetVersion() || !s.OfRun(RunOf(j.Record, j.Revision))
}

func (st *State) orderRemoved(s region.Slot, revision int64) {
	if r := st.Regions[s.Region]; r != nil {
		r.Orders.DeleteAt(uint64(revision), s.WireKey())
		r.Wake()
	}
}

func (st *State) applyRegion(name string, rec *nusav1.Region, revision int64) {
	r := st.Regions[name]
	if rec == nil {
		if r != nil {
			delete(st.Regions, name)
			// Another cluster may take the name, and counts from 1 again.
			for _, j := range st.Jobs {
				delete(j.Summaries, name)
			}
			st.RegionsChanged()
			st.latencyRows() // now: another region may take the name
		}
		return
	}
	if r == nil {
		r = &Region{Name: name, Orders: link.NewOutbox[*nusav1.SlotOrder](st.Epoch, removalsKept), SummaryKeys: map[string]struct{}{}}
		r.Life = region.Open(st.RegionConfig, region.Record{
			Name: name, ClusterID: rec.GetClusterId(), Incarnation: rec.GetIncarnation(), Term: rec.GetTerm(), Fence: rec.GetFence(),
		}, st.Clock())
		st.Regions[name] = r
	}
	r.Record, r.Revision = rec, revision
	r.Stamp = st.Notify()
	st.RegionsChanged()
}

// RegionsChanged: peers are told, and jobs that depend on the set of regions
// are looked at again. mu is held.
func (st *State) RegionsChanged() {
	st.Notify()
	st.matrix.stale = true
	st.matrix.stamp++
	st.ProbeDemandStale = true
	for _, r := range st.Regions {
		if r.Session != nil {
			r.Session.peersDirty = true
			r.Wake()
		}
	}
	for k, j := range st.Jobs {
		if j.Spec.Type == place.System {
			st.Pending[k] = struct{}{}
		}
	}
}

func (r *Region) Wake() {
	if r.Session != nil {
		r.Session.wake()
	}
}

// RegionNames are sorted. mu is held.
func (st *State) RegionNames() []string { return slices.Sorted(maps.Keys(st.Regions)) }

// ForgetAnswer makes an idempotency key new again.
func (st *State) ForgetAnswer(key string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	delete(st.recentKeys.keys, key)
}

// recentSet remembers the latest keys, at most recentKeys.
type recentSet struct {
	keys  map[string]struct{}
	order []string
}

func (s *recentSet) has(key string) bool { _, ok := s.keys[key]; return ok }

func (s *recentSet) add(key string) {
	if s.keys == nil {
		s.keys = map[string]struct{}{}
	}
	s.keys[key] = struct{}{}
	if s.order = append(s.order, key); len(s.order) > recentKeys {
		delete(s.keys, s.order[0])
		s.order = s.order[1:]
	}
}
