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

// state is what the active server knows. The durable part changes only in
// apply, at load and after a committed transaction; the soft part belongs to
// the sessions. A fresh one is made at each election.
//
// Messages in it are never changed in place, only replaced: whoever took a
// pointer under mu may read it without.
type state struct {
	mu sync.Mutex
	// epoch numbers this reign: the positions of its streams start with it.
	epoch    string
	revision int64
	jobs     map[jobKey]*jobState
	regions  map[string]*regionState
	matrix   matrix
	// originRecords by domain, and the table of them.
	originRecords map[string]originRecord
	origins       *origins.Table
	// asks of all jobs, for the shape subscriptions.
	asks map[uint64]*askState
	// pending are the jobs the placer has to look at.
	pending map[jobKey]struct{}
	// recent are jobs with slots that some report does not charge for yet.
	recent map[jobKey]struct{}
	// purge are stopped jobs that are to be forgotten.
	purge map[jobKey]struct{}
	// ended are jobs whose end is not stored yet.
	ended map[jobKey]struct{}
	// rollouts are jobs whose rollout has to be judged anew.
	rollouts map[jobKey]struct{}
	// changed is closed and replaced when anything a watch shows has changed.
	changed chan struct{}
	stamp   uint64
	// explained are the jobs with full explanations, oldest first.
	explained []jobKey
	asksDirty bool
	// near are the jobs with near rules; see near.go.
	near          map[jobKey]struct{}
	interest      map[string]map[string]float64
	interestDirty bool
	// followedAt is when breaches were last looked at.
	followedAt time.Duration
	// recentKeys are idempotency keys written lately.
	recentKeys recentSet
	loading    bool
	// audits counts the notes of this reign; see tx.audit.
	audits uint64
	events events
	clock  func() time.Duration
	region region.Config
}

// jobState is a job with its slots and what regions say about it.
type jobState struct {
	key jobKey
	rec *nusav1.JobRecord // nil: slots of a job that is gone
	rev int64
	// spec is the encoded JobSpec, as regions get it.
	spec []byte
	// plan is the job as the placer sees it, without slots.
	plan      place.Job
	asks      []uint64
	slots     map[string]region.Slot // by Slot.Key
	summaries map[string]*nusav1.JobSummary
	result    *nusav1.ResultRecord
	resultRev int64
	// healthy is the latest version that ran whole; see rollout.go.
	healthy *nusav1.JobRecord
	// changes grows with each durable change of the job or its slots.
	changes uint64
	// stamp is the state's at the latest change that a watch shows.
	stamp     uint64
	explained map[string]explained // by group
	breaches  []place.Breach
	lacks     map[string]*lack // by group
	freed     []freed          // oldest first
	// stages says of regions why a new version has not reached them, as the latest
	// plan said.
	stages map[string]string
	// moves are what the latest plan said of those that are sustained.
	moves   []place.Move
	movesAt time.Duration
}

// regionState is a region with its session, if it has one.
type regionState struct {
	name string
	rec  *nusav1.Region
	rev  int64
	life region.State
	// session is the live one; nil while nobody speaks for the region.
	session *session
	orders  *link.Outbox[*nusav1.SlotOrder]

	report   *nusav1.RegionReport
	reportAt time.Duration
	// reportOld: it comes from a checkpoint, and is older than reportAt by who
	// knows how much.
	reportOld  bool
	reportNum  uint64 // reports received over all sessions
	load       loadTrack
	master     string
	masterAddr string
	version    string
	servers    []*nusav1.RegionalServer
	coordinate *nusav1.Coordinate
	// summaries is where the region's summaries stand; the position to resume.
	summaries  link.Position
	inboxKeys  map[string]struct{}        // keys of summaries held
	dirty      bool                       // summaries or report changed since the checkpoint
	checkpoint []*nusav1.CheckpointRecord // while loading
	chunks     int                        // records of the stored checkpoint
	stamp      uint64
	returned   []returned
	// away are the instances of jobs that may still run on lost nodes and fit no
	// other, as told in the present session.
	away map[jobKey][]*nusav1.AwayInstances
}

func newState(epoch string, clock func() time.Duration, lease time.Duration) *state {
	return &state{
		epoch: epoch, clock: clock, region: region.Config{Lease: lease},
		jobs: map[jobKey]*jobState{}, regions: map[string]*regionState{}, asks: map[uint64]*askState{},
		pending: map[jobKey]struct{}{}, recent: map[jobKey]struct{}{},
		purge: map[jobKey]struct{}{}, ended: map[jobKey]struct{}{}, rollouts: map[jobKey]struct{}{},
		changed: make(chan struct{}), events: events{eventlog.New(epoch)}, matrix: newMatrix(),
		originRecords: map[string]originRecord{}, near: map[jobKey]struct{}{},
	}
}

// notify wakes watches and answers the stamp of the change. mu is held.
func (st *state) notify() uint64 {
	st.stamp++
	close(st.changed)
	st.changed = make(chan struct{})
	return st.stamp
}

func (st *state) jobRecord(k jobKey) (*nusav1.JobRecord, int64) {
	if j := st.jobs[k]; j != nil {
		return j.rec, j.rev
	}
	return nil, 0
}

// job finds a job, making an empty one. mu is held.
func (st *state) job(k jobKey) *jobState {
	j := st.jobs[k]
	if j == nil {
		j = &jobState{key: k, slots: map[string]region.Slot{}, summaries: map[string]*nusav1.JobSummary{}}
		st.jobs[k] = j
	}
	return j
}

// apply takes a written or loaded record (nil = removed) into the state. mu is
// held.
func (st *state) apply(key string, msg proto.Message, revision int64) {
	switch {
	case strings.HasPrefix(key, jobPrefix):
		namespace, name, _ := strings.Cut(key[len(jobPrefix):], "/")
		rec, _ := msg.(*nusav1.JobRecord)
		st.applyJob(jobKey{namespace, name}, rec, revision)
	case strings.HasPrefix(key, slotPrefix):
		slot, _ := msg.(*nusav1.Slot)
		st.applySlot(key[len(slotPrefix):], slot, revision)
	case strings.HasPrefix(key, regionPrefix):
		rec, _ := msg.(*nusav1.Region)
		st.applyRegion(key[len(regionPrefix):], rec, revision)
	case strings.HasPrefix(key, resultPrefix):
		namespace, name, _ := strings.Cut(key[len(resultPrefix):], "/")
		rec, _ := msg.(*nusav1.ResultRecord)
		if j := st.jobs[jobKey{namespace, name}]; j != nil || rec != nil {
			j = st.job(jobKey{namespace, name})
			j.result, j.resultRev = rec, revision
			st.forget(j)
		}
	case strings.HasPrefix(key, healthyPrefix):
		namespace, name, _ := strings.Cut(key[len(healthyPrefix):], "/")
		rec, _ := msg.(*nusav1.JobRecord)
		if j := st.jobs[jobKey{namespace, name}]; j != nil || rec != nil {
			j = st.job(jobKey{namespace, name})
			j.healthy = rec
			st.forget(j)
		}
	case strings.HasPrefix(key, originPrefix):
		rec, _ := msg.(*nusav1.OriginRecord)
		st.applyOrigin(key[len(originPrefix):], rec, revision)
	case strings.HasPrefix(key, idemPrefix):
		st.recentKeys.add(key)
	case strings.HasPrefix(key, checkpointPrefix):
		name, chunk, _ := strings.Cut(key[len(checkpointPrefix):], "/")
		rec, _ := msg.(*nusav1.CheckpointRecord)
		n, err := strconv.Atoi(chunk)
		r := st.regions[name]
		if err != nil || r == nil || rec == nil {
			return
		}
		r.chunks = max(r.chunks, n+1)
		if st.loading {
			r.checkpoint = append(r.checkpoint, rec)
		}
	}
}

func (st *state) applyJob(k jobKey, rec *nusav1.JobRecord, revision int64) {
	j := st.job(k)
	j.changes++
	if j.rec != nil {
		st.forgive(k)
	}
	st.dropAsks(j)
	delete(st.near, k)
	st.interestDirty = true
	j.rec, j.rev = rec, revision
	j.keepExplained(rec)
	j.keepLacks(rec)
	j.stamp = st.notify()
	st.pending[k] = struct{}{}
	if rec == nil {
		j.spec, j.plan = nil, place.Job{}
		st.forget(j)
		return
	}
	j.spec, _ = encodeSpec(rec) // of a record that was encoded or decoded just now
	j.plan = planJob(rec, revision)
	if !rec.GetJob().GetStopped() {
		st.addAsks(j)
		if hasNear(j.plan) {
			st.near[k] = struct{}{}
		}
	}
	if rec.GetPurge() {
		st.purge[k] = struct{}{}
	}
}

// keepExplained keeps the decisions that put instances where they are: a new
// version leaves them there, and what it needs is explained anew.
func (j *jobState) keepExplained(rec *nusav1.JobRecord) {
	groups := rec.GetJob().GetSpec().GetGroups()
	for name, e := range j.explained {
		if e.Pending = nil; groups[name] == nil {
			delete(j.explained, name)
			continue
		}
		j.explained[name] = e
	}
}

// forget drops a job of which nothing is left.
func (st *state) forget(j *jobState) {
	if j.rec == nil && len(j.slots) == 0 && j.result == nil && j.healthy == nil {
		delete(st.jobs, j.key)
		for _, set := range []map[jobKey]struct{}{st.pending, st.recent, st.purge, st.ended, st.rollouts} {
			delete(set, j.key)
		}
	}
}

func (st *state) applySlot(key string, msg *nusav1.Slot, revision int64) {
	parts := strings.SplitN(key, "/", 3)
	if len(parts) != 3 {
		return
	}
	k := jobKey{parts[0], parts[1]}
	j := st.job(k)
	j.changes++
	j.stamp = st.notify()
	if _, near := st.near[k]; near {
		st.interestDirty = true
	}
	old, had := j.slots[key]
	if msg == nil {
		delete(j.slots, key)
		if had {
			st.orderRemoved(old, revision)
			st.ended[k], st.rollouts[k] = struct{}{}, struct{}{} // perhaps it was only waited for
		}
		st.pending[k] = struct{}{}
		st.forget(j)
		return
	}
	s := slotFromProto(key, msg, revision)
	if had && old.Region != s.Region {
		st.orderRemoved(old, revision)
	}
	j.slots[key] = s
	if s.State == region.Offered && s.Generation == revision || s.Desired == region.DesiredRevoke {
		st.recent[k] = struct{}{}
	}
	if !had || old.From != s.From || old.To != s.To || j.needsPlacer(s) {
		st.pending[k] = struct{}{} // a split leaves indices without an owner
	}
	if s.State == region.Done {
		st.ended[k] = struct{}{}
	}
	st.rollouts[k] = struct{}{}
	if r := st.regions[s.Region]; r != nil {
		// A slot of an older version keeps its spec until the placer rewrites it.
		spec := j.spec
		if prev, held := r.orders.Get(s.WireKey()); held && prev.GetSlot().GetJobVersion() == s.JobVersion {
			spec = prev.GetSpec()
		}
		r.orders.PutAt(uint64(revision), s.WireKey(), &nusav1.SlotOrder{Slot: slotToProto(s), Spec: spec, Revision: revision})
		r.wake()
	}
}

// needsPlacer says whether a slot is not as the job's present version wants it.
func (j *jobState) needsPlacer(s region.Slot) bool {
	if j.rec == nil || j.rec.GetJob().GetStopped() {
		return s.Desired == region.DesiredRun
	}
	return s.JobVersion != j.rec.GetJob().GetVersion() || !s.OfRun(runOf(j.rec, j.rev))
}

func (st *state) orderRemoved(s region.Slot, revision int64) {
	if r := st.regions[s.Region]; r != nil {
		r.orders.DeleteAt(uint64(revision), s.WireKey())
		r.wake()
	}
}

func (st *state) applyRegion(name string, rec *nusav1.Region, revision int64) {
	r := st.regions[name]
	if rec == nil {
		if r != nil {
			delete(st.regions, name)
			// Another cluster may take the name, and counts from 1 again.
			for _, j := range st.jobs {
				delete(j.summaries, name)
			}
			st.regionsChanged()
			st.latencyRows() // now: another region may take the name
		}
		return
	}
	if r == nil {
		r = &regionState{name: name, orders: link.NewOutbox[*nusav1.SlotOrder](st.epoch, removalsKept), inboxKeys: map[string]struct{}{}}
		r.life = region.Open(st.region, region.Record{
			Name: name, ClusterID: rec.GetClusterId(), Incarnation: rec.GetIncarnation(), Term: rec.GetTerm(), Fence: rec.GetFence(),
		}, st.clock())
		st.regions[name] = r
	}
	r.rec, r.rev = rec, revision
	r.stamp = st.notify()
	st.regionsChanged()
}

// regionsChanged: peers are told, and jobs that depend on the set of regions
// are looked at again. mu is held.
func (st *state) regionsChanged() {
	st.notify()
	st.matrix.stale = true
	st.matrix.stamp++
	st.interestDirty = true
	for _, r := range st.regions {
		if r.session != nil {
			r.session.peersDirty = true
			r.wake()
		}
	}
	for k, j := range st.jobs {
		if j.plan.Type == place.System {
			st.pending[k] = struct{}{}
		}
	}
}

func (r *regionState) wake() {
	if r.session != nil {
		r.session.wake()
	}
}

// regionNames are sorted. mu is held.
func (st *state) regionNames() []string { return slices.Sorted(maps.Keys(st.regions)) }

// forgetKey makes an idempotency key new again.
func (st *state) forgetKey(key string) {
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
