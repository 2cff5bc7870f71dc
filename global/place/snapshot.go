package place

import (
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/topology"
)

// Snapshot is everything that a plan depends on. MakePlan does not change it.
type Snapshot struct {
	// Regions sorted by name, each name once. Nobody changes a region that a snapshot has.
	Regions []*Region
	// Jobs in any order, each namespace/name once. Quiet jobs cost little.
	Jobs []Job
	// Returned is the memory of rejected and returned work. The caller bounds
	// it. An entry counts for a minute or until its region starts a new
	// session, and while Backoff lasts; its text counts for as long as the job
	// is pending.
	Returned []Returned
	// Held counts, by region, the instances that it holds and that wait for a node.
	Held map[string]int
	// Topology has the distances; the worse of both directions counts. Nil: no
	// distance is known.
	Topology *topology.View
	// Origins are the regions that serve a domain, for Near.Domain. Regions
	// that do not exist are ignored.
	Origins map[string][]string
	// Charged says that Region.Charged has all slots that the reports do not include.
	// Otherwise the plan charges the slots of Jobs.
	Charged bool
	// Given are charges beyond those of Charged: of slots that are not stored yet.
	Given []Charge
	// Terse leaves out the explanation of each region
	// (GroupExplanation.Regions) for jobs without Explain.
	Terse bool
	// MaxVerdicts bounds the work of the plan: once it has looked at so many regions for
	// groups, one by one, it leaves the jobs that remain undecided. Distances and labels that
	// rules look at count as a part of that. 0: no bound.
	MaxVerdicts int
	// Now is the time of the snapshot, on the clock of Region.At.
	Now time.Duration
	// Index is kept from plan to plan and makes a plan cheaper. It changes no decision; nil:
	// the plan looks at every region.
	Index *Index
}

// Region is one region with its latest report.
type Region struct {
	Name   string
	Labels map[string]string
	// Cordoned regions get no new slots, and no more do Draining ones, whose work an
	// operator moves away.
	Cordoned, Draining bool
	// Connected: a live session exists.
	Connected bool
	// Lost: the region was declared lost, and its work has other owners.
	Lost bool
	// HealthyFor is for how long the region has been connected without a break.
	// Unsteady: it was lost so often that it gets no work back by itself. Returning: an
	// operator lets the work return that verdicts moved away from it.
	HealthyFor          time.Duration
	Unsteady, Returning bool
	// CommitBlocked is for how long the region has been unable to commit to its log; 0 =
	// it can.
	CommitBlocked time.Duration
	// FeatureLevel of the region. From 1 on leases of regions bind.
	FeatureLevel int
	// NeverConnected: no cluster has ever connected under this name.
	NeverConnected bool
	// DisconnectedFor is how long there has been no session.
	DisconnectedFor time.Duration

	// HasReport is false until the first report (a checkpoint counts as one).
	HasReport bool
	ReportAge time.Duration
	// At is when HealthyFor, DisconnectedFor and ReportAge were as they say. They have grown
	// since, see Snapshot.Now.
	At time.Duration
	// ReportSequence counts the reports that the global tier has received from
	// this region, over all sessions; see Returned.
	ReportSequence uint64
	// SlotsRevision: the report does not include slots with a later generation.
	// The plan charges those itself.
	SlotsRevision int64
	// Charged are the slots that the report does not include, see Snapshot.Charged.
	Charged Charges
	// Fits are exact counts by Ask.Hash for subscribed asks.
	Fits map[uint64]int
	// NoFitReasons says why asks fit nowhere, by Ask.Hash, as reported by the
	// region.
	NoFitReasons map[uint64]Returned
	// Bins estimate every other ask; see Bin.
	Bins []Bin
	// Drivers that are healthy on at least one node; empty: the region did not
	// report them.
	Drivers []string
	// Free and Capacity are totals over ready nodes, for the score only.
	Free, Capacity Resources
	// CPUUtilisation and MemoryUtilisation are in use, 0..1; for display only.
	CPUUtilisation, MemoryUtilisation float64
	NodesReady                        int
	// QueueLength counts the accepted instances that wait for a node.
	QueueLength int
}

// reportAge returns the age of the report now.
func (r *Region) reportAge(now time.Duration) time.Duration { return r.ReportAge + r.since(now) }

// disconnectedFor returns for how long there has been no session now.
func (r *Region) disconnectedFor(now time.Duration) time.Duration {
	if r.Connected {
		return r.DisconnectedFor
	}
	return r.DisconnectedFor + r.since(now)
}

// healthyFor returns for how long the region has been connected now.
func (r *Region) healthyFor(now time.Duration) time.Duration {
	if r.HealthyFor <= 0 {
		return 0
	}
	return r.HealthyFor + r.since(now)
}

func (r *Region) since(now time.Duration) time.Duration { return max(0, now-r.At) }

// Bin is a number of nodes, each with at least Free left.
type Bin struct {
	Nodes int
	Free  Resources
	// Pool; empty = "default".
	Pool string
}

// Resources is an amount. GPUMilli counts thousandths of a device.
type Resources struct {
	CPUMilli    int64
	MemoryBytes int64
	DiskBytes   int64
	GPUMilli    int64
}

// Returned is a refusal that still counts: the region rejected or returned this
// ask. The region is skipped for the ask until a later report (a greater
// ReportSequence) carries an exact count above zero for it. Callers should
// therefore subscribe the asks of pending groups first.
type Returned struct {
	Namespace, Job, Group string
	// Ask is the hash of the ask that was returned; 0: only Backoff counts, and
	// if that is 0 only the text.
	Ask    uint64
	Region string
	Reason string
	// Message has the region's figures. ReasonText is a whole explanation for
	// people that includes Reason. Either may be empty.
	Message, ReasonText string
	Counts              []region.CountedReason
	// ReportSequence is the region's at the time of the return. A greater value
	// may be stored to hold the ask back for longer.
	ReportSequence uint64
	// Backoff is for how long the region must not get this group again,
	// whatever its reports say: it returned the group repeatedly for a reason
	// that no report shows. 0 = no backoff.
	Backoff time.Duration
}

// JobType is service, batch or system; the wire enum is JOB_TYPE_ + upper case.
type JobType string

const (
	Service JobType = "service"
	Batch   JobType = "batch"
	System  JobType = "system"
)

// Job is one stored job and its slots.
type Job struct {
	Namespace, Name string
	Version         int64
	// Run: slots of another run are rewritten, see region.Slot.
	Run  int64
	Type JobType
	// Priority 0..100, higher first.
	Priority int
	// Revision orders jobs of equal priority: the etcd revision of the submit.
	Revision int64
	Stopped  bool
	// Groups sorted by name.
	Groups []Group
	// Colocate are sets of group names that share their regions.
	Colocate [][]string
	// Slots of every group, also of groups that the spec does not have any
	// more; sorted by group, from, region. System slots are [0,1) with System
	// set.
	Slots []region.Slot
	// Disconnected are owned instances that no node of their region takes and
	// that may still run on a disconnected node; see Disconnected.
	Disconnected []Disconnected
	// Movable are slots of lost regions that may move now; see Movable.
	Movable []Movable
	// Breaches are the required bounds that are not kept, see BoundTracker.
	Breaches []Breach
	// Down counts, by group, owned instances that should run and do not, as far
	// as regions reported. Read only for groups with a sustained breach.
	Down map[string]int
	// Summaries are the regions' latest summaries of the job, sorted by region.
	// Read only while a version that restarts groups is rolled out.
	Summaries []Summary
	// Explain asks for the full explanation even if there is no work.
	Explain bool
}

// Group is the part of a job's group that a plan depends on.
type Group struct {
	Name string
	// UnchangedSince is the first version with the group's present spec: batch
	// instances that an earlier version completed run again. 0: the spec is
	// that of the run's first version.
	UnchangedSince int64
	// Count is not used for system jobs.
	Count int
	Ask   Ask
	// AskHash is Ask.Hash if the caller has computed it, else 0.
	AskHash uint64
	Regions RegionsSpec
	// MaxParallel is how many instances may be down at a time for a move or a
	// new version. 0 means 1, but for a system job every region at once.
	MaxParallel int
	// WaitedFor is how long instances have been unplaced without any progress.
	// HoldAttempts are the recent holds of the group, see HoldAfter.
	WaitedFor    time.Duration
	HoldAttempts []HoldAttempt
	// Released are instances that regions gave up after a revoke and that no
	// plan has placed since. They are placed before other unowned instances,
	// whatever the priority. Instances that have an owner are ignored.
	Released []Released
	// Bound: the lease of the region binds the instances. StopTime is the longest time
	// between the stop signal and the kill.
	Bound    bool
	StopTime time.Duration
	// OnDisconnect is the policy for a region that is disconnected or lost.
	OnDisconnect OnDisconnect
}

// hash returns the hash of the group's ask.
func (g *Group) hash() uint64 {
	if g.AskHash != 0 {
		return g.AskHash
	}
	return g.Ask.Hash()
}

// Released are instances From ≤ i < To that a region gave up after a revoke.
// Room for them is reserved in other regions.
type Released struct {
	Region   string
	From, To int
}

// OnDisconnect is the group's policy for a disconnected region: how long to wait, and
// whether to start a replacement elsewhere then.
type OnDisconnect struct {
	After    time.Duration
	Replace  bool
	Failback Failback
}

// Failback says how replacements return to the region of the originals, and after how much
// time of its unbroken health.
type Failback struct {
	Mode  FailbackMode
	After time.Duration
}

// Divide says how instances are divided among regions; the wire enum is DIVIDE_
// + upper case.
type Divide string

const (
	// DivideBest uses the best regions: as few as hold all instances, but at least
	// spread.min. It divides among the first spread.min of them in proportion to what
	// fits; the rest overflows to the next best regions.
	DivideBest Divide = "best"
	// DivideCapacity divides in proportion to what fits, among spread.max regions; without
	// max among spread.min regions; without either among all regions that can take work,
	// but never more regions than the group has instances.
	DivideCapacity Divide = "capacity"
	// DivideEven divides evenly among as many regions as for capacity.
	DivideEven Divide = "even"
	// DivideWeighted divides in proportion to the weights of `prefer` among the
	// regions with a positive weight, bounded as for capacity; other regions take
	// the overflow.
	DivideWeighted Divide = "weighted"
)

// RegionsSpec is the effective `regions` of a group.
type RegionsSpec struct {
	// Allow: a region must match one selector. Empty = any region.
	Allow  []Selector
	Prefer []Preference
	Near   []Near
	// SpreadMin and SpreadMax bound the number of regions; 0 = no bound. If min
	// cannot be met, the share of the missing regions stays unplaced and the
	// rest is placed.
	SpreadMin, SpreadMax int
	// Divide; empty = the default of the job, see ruleOf.
	Divide Divide
}

// Selector matches a region by name, labels or both. The empty selector matches
// no region.
type Selector struct {
	Name   string
	Labels map[string]string
}

// Preference adds Weight (-100..100) to matching regions.
type Preference struct {
	Selector Selector
	Weight   int
}

// Unknown says how a required near clause treats an edge without a fresh
// measurement; the wire enum is UNKNOWN_ + upper case.
type Unknown string

const (
	// UnknownRefuse is the default.
	UnknownRefuse    Unknown = "refuse"
	UnknownPredicted Unknown = "predicted"
	UnknownAccept    Unknown = "accept"
)

// Near asks for a short network distance to a region, to the nearest region
// with some labels, to the nearest region that serves a domain, or to a point.
type Near struct {
	Selector Selector
	// Domain, if not empty, is used instead of Selector, see Snapshot.Origins.
	Domain string
	// Location, if not nil, is used instead of Selector. There is no edge to a
	// point: the estimate decides, whatever Unknown says.
	Location *topology.Location
	// MaxRTT is the bound if Required, and the distance at which the score is
	// half of Weight. 0: no bound, and half of Weight at 100 ms.
	MaxRTT time.Duration
	// Percentile 50, 90 or 99; 0 = 50.
	Percentile topology.Percentile
	Required   bool
	Unknown    Unknown
	// Weight 0..100 in the score.
	Weight int
}
