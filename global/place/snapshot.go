package place

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/topology"
)

// Snapshot is everything that a plan depends on. MakePlan does not change it.
type Snapshot struct {
	// Regions are sorted by name, and each name occurs once. A region in a snapshot is never
	// changed.
	Regions []*Region
	// Jobs may be in any order, and each namespace/name occurs once. Quiet jobs cost little.
	Jobs []Job
	// Returned holds rejected and returned work. The caller bounds it. An entry counts for a
	// minute, or until its region starts a new session, and while Backoff lasts. Its text counts as
	// long as the job is pending.
	Returned []Returned
	// Held is, by region, the number of instances that the region holds and that wait for a node.
	Held map[string]int
	// Topology has the distances. The worse of both directions counts. Nil: no distance is known.
	Topology *topology.View
	// Origins are, by domain, the regions that serve the domain, for Near.Domain. Regions that do
	// not exist are ignored.
	Origins map[string][]string
	// Charged: Region.Charged includes all slots that the reports do not include. Otherwise the
	// plan charges the slots of Jobs.
	Charged bool
	// Given are further charges, for slots that are not stored yet.
	Given []Charge
	// Terse leaves out the verdicts about regions (GroupExplanation.Regions) for jobs without
	// Explain.
	Terse bool
	// MaxVerdicts bounds the work of the plan. Once the plan has evaluated this many regions, added
	// up over all groups, it leaves the remaining jobs undecided. Distances and labels that rules
	// look at count as parts of a verdict. 0: no bound.
	MaxVerdicts int
	// Now is the time of the snapshot, on the clock of Region.At.
	Now time.Duration
	// Index is kept from plan to plan, and makes a plan cheaper. It changes no decision. Nil: the
	// plan evaluates every region.
	Index *Index
	// Memory may have room for the plan's actions.
	Memory []Action
}

// Region is one region with its latest report.
type Region struct {
	Name   string
	Labels map[string]string
	// Cordoned regions get no new slots. Draining regions get none either, and an operator moves
	// their work to other regions.
	Cordoned, Draining bool
	// Connected: the region has a live session.
	Connected bool
	// Lost: the region was declared lost, and its slots may have other owners.
	Lost bool
	// HealthyFor is how long the region has been connected without a break. Unsteady: the region
	// was lost so often that it gets no work back without an operator. Returning: an operator lets
	// the work return that verdicts moved to other regions.
	HealthyFor          time.Duration
	Unsteady, Returning bool
	// CommitBlocked is how long the region has been unable to commit to its log; 0: it can commit.
	CommitBlocked time.Duration
	// Behind: the region was lost, and has not stored yet what it lost. An offer would hide the loss.
	Behind bool
	// FeatureLevel is the region's feature level. From level 1 on the leases of regions bind
	// instances.
	FeatureLevel int
	// NeverConnected: no cluster has ever connected under this name.
	NeverConnected bool
	// DisconnectedFor is how long the region has had no session.
	DisconnectedFor time.Duration

	// HasReport is false until the first report. The report of a checkpoint counts.
	HasReport bool
	ReportAge time.Duration
	// At is the time at which HealthyFor, DisconnectedFor and ReportAge had these values. They have
	// grown since: see Snapshot.Now.
	At time.Duration
	// ReportSequence is the number of reports that the global tier has received from this region,
	// in all sessions. See Returned.
	ReportSequence uint64
	// SlotsRevision: the report does not include slots with a later generation. The plan charges
	// those itself.
	SlotsRevision int64
	// Charged are the charges of the slots that the report does not include. See Snapshot.Charged.
	Charged Charges
	// Fits holds exact counts by Ask.Hash, for subscribed asks.
	Fits map[uint64]int
	// NoFitReasons says, by Ask.Hash, why an ask fits nowhere, as the region reported.
	NoFitReasons map[uint64]Returned
	// Bins give an estimate for every other ask. See Bin.
	Bins []Bin
	// Drivers are the drivers that are healthy on at least one node. Empty: the region did not
	// report them.
	Drivers []string
	// Free and Capacity are totals over ready nodes. They are only for the score.
	Free, Capacity Resources
	// CPUUtilisation and MemoryUtilisation are the shares in use, 0..1. They are only shown.
	CPUUtilisation, MemoryUtilisation float64
	NodesReady                        int
	// QueueLength is the number of accepted instances that wait for a node.
	QueueLength int
}

// reportAge returns the age of the report at now.
func (r *Region) reportAge(now time.Duration) time.Duration { return r.ReportAge + r.since(now) }

// disconnectedFor returns how long the region has had no session at now.
func (r *Region) disconnectedFor(now time.Duration) time.Duration {
	if r.Connected {
		return r.DisconnectedFor
	}
	return r.DisconnectedFor + r.since(now)
}

// healthyFor returns how long the region has been connected without a break at now.
func (r *Region) healthyFor(now time.Duration) time.Duration {
	if r.HealthyFor <= 0 {
		return 0
	}
	return r.HealthyFor + r.since(now)
}

func (r *Region) since(now time.Duration) time.Duration { return max(0, now-r.At) }

// Bin is a number of nodes that each have at least Free left.
type Bin struct {
	Nodes int
	Free  Resources
	// Pool is the pool of the nodes. Empty: DefaultPool.
	Pool string
}

// Resources is an amount of each resource. GPUMilli counts thousandths of a device.
type Resources struct {
	CPUMilli    int64
	MemoryBytes int64
	DiskBytes   int64
	GPUMilli    int64
}

// Returned is a refusal that still counts: the region rejected or returned this ask. The region is
// skipped for the ask until a later report, with a greater ReportSequence, has an exact count above
// zero for the ask. Callers should therefore subscribe the asks of pending groups first.
type Returned struct {
	Namespace, Job, Group string
	// Ask is the hash of the returned ask. 0: only Backoff counts, and if Backoff is 0 too, only
	// the text.
	Ask    uint64
	Region string
	Reason string
	// Message has the region's figures. ReasonText is the whole explanation for users, including
	// Reason. Both may be empty.
	Message, ReasonText string
	Counts              []region.CountedReason
	// ReportSequence is the region's ReportSequence at the time of the return. The caller may store
	// a greater value to keep the ask from the region for longer.
	ReportSequence uint64
	// Backoff is how long the region must not get this group again, whatever its reports say,
	// because it returned the group repeatedly for a reason that no report shows. 0: no backoff.
	Backoff time.Duration
}

// JobType is the type of a job. The wire enum is JOB_TYPE_ and upper case.
type JobType string

const (
	Service JobType = "service"
	Batch   JobType = "batch"
	System  JobType = "system"
	// Workflow is a job without groups: its steps are jobs of their own.
	Workflow JobType = "workflow"
)

// Job is one stored job and its slots.
type Job struct {
	Namespace, Name string
	Version         int64
	// Run is the present run. Slots of another run are rewritten: see region.Slot.
	Run  int64
	Type JobType
	// Priority is 0..100. Jobs with a higher priority are decided first.
	Priority int
	// Revision is the etcd revision of the submit. It orders jobs of equal priority.
	Revision int64
	Stopped  bool
	// Groups are sorted by name.
	Groups []Group
	// Colocate holds sets of group names. The groups of a set share their regions.
	Colocate [][]string
	// Slots are the slots of all groups, also of groups that the spec no longer has, sorted by
	// group, From and Region. The slots of a system job are [0,1), with System set.
	Slots []region.Slot
	// Disconnected are owned instances that no node of their region takes and that may still run on
	// a disconnected node.
	Disconnected []Disconnected
	// Movable are the slots of lost regions that may move now.
	Movable []Movable
	// Breaches are the required bounds that are broken. See BoundTracker.
	Breaches []Breach
	// Down is, by group, the number of owned instances that must run and do not run, as far as
	// regions reported. It is read only for groups with a sustained breach.
	Down map[string]int
	// Summaries are the regions' latest summaries of the job, sorted by region. They are read only of
	// groups with Parallel, and while a version that restarts groups is rolled out.
	Summaries []Summary
	// RolloutHold says why no further region gets the present version, for example because an
	// operator paused its rollout. Empty: regions get it in turn.
	RolloutHold string
	// Paused: RolloutHold is set because an operator paused the rollout. The present version has not failed, so
	// an instance that has it keeps it when it gets another region.
	Paused bool
	// Stable is the latest version that ran with all instances. While RolloutHold is set, an instance that
	// the present version has not reached (or that it has reached, unless Paused) keeps the work of Stable, also when the instance gets another
	// region. Only Version and Groups of Stable count. Nil: none is known, and such an instance gets
	// the present version. KeepStable sets it.
	Stable *Job
	// RegionOrder says how a new version goes from region to region. Nil: MaxParallel of the groups
	// bounds the instances that are down in all regions together.
	RegionOrder *RegionOrder
	// Explain asks for the full explanation, even if the job needs no work.
	Explain bool
}

// Group is the part of a job's group that a plan depends on.
type Group struct {
	Name string
	// UnchangedSince is the first version with the group's present spec. Batch instances that an
	// earlier version completed run again. 0: the spec has not changed since the first version of
	// the run.
	UnchangedSince int64
	// Count is the number of instances. It is not used for system jobs.
	Count int
	// CanaryFrom is the first index that gets a new version without waiting for its turn; 0: every
	// index waits.
	CanaryFrom int
	Ask        Ask
	// AskHash is Ask.Hash if the caller has computed it, otherwise 0.
	AskHash uint64
	Regions RegionsSpec
	// MaxParallel is how many instances may be down at a time for a move or a new version. 0 means
	// 1; for a system job it means all regions at once.
	MaxParallel int
	// Level is the feature level that a region needs for the group, besides that of its lease.
	Level int
	// Refused has the regions in which no node with its driver accepts the config of a task in the present version,
	// with the reason. Instances that the group has there stay, and keep their version. RefusedStable is the same
	// for Job.Stable, if instances may get that version.
	Refused, RefusedStable map[string]string
	// Parallel is how many instances may run at a time, over all regions. 0: no limit.
	Parallel int
	// WaitedFor is how long instances have been unplaced without any progress. HoldAttempts are the
	// recent holds of the group. See HoldAfter.
	WaitedFor    time.Duration
	HoldAttempts []HoldAttempt
	// Released are the instances that regions gave up after a revoke and that no plan has placed
	// since. They are placed before other unowned instances, whatever the priority. Instances that
	// have an owner are ignored.
	Released []Released
	// Bound: the region's lease binds the instances. StopTime is the longest time between the stop
	// signal and the kill.
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

// level returns the feature level that a region needs for a group.
func (g *Group) level() int {
	if g.Bound {
		return max(g.Level, boundLevel)
	}
	return g.Level
}

// has reports whether a region has just given up an index that had the present version.
func (g *Group) has(index int) bool {
	return slices.ContainsFunc(g.Released, func(f Released) bool {
		return f.From <= index && index < f.To && f.Version >= g.UnchangedSince && f.Version > 0
	})
}

// Released are the instances From ≤ i < To that a region gave up after a revoke. Room for them is
// reserved in other regions. Version is the version of the job that they had; 0: unknown.
type Released struct {
	Region   string
	From, To int
	Version  int64
}

// OnDisconnect is a group's policy for a disconnected region: how long to wait, and whether to
// start a replacement in another region then.
type OnDisconnect struct {
	After    time.Duration
	Replace  bool
	Failback Failback
}

// Failback says how replacements return to the region of the originals, and for how long that
// region must have been healthy without a break.
type Failback struct {
	Mode  FailbackMode
	After time.Duration
}

// Divide says how instances are divided among regions. The wire enum is DIVIDE_ and upper case.
type Divide string

const (
	// DivideBest uses the best regions: as few as can take all instances, but at least spread.min.
	// It divides among the first spread.min regions in proportion to what fits. The rest goes to
	// the next best regions.
	DivideBest Divide = "best"
	// DivideCapacity divides in proportion to what fits, among spread.max regions. Without
	// spread.max it uses spread.min regions. Without both it uses all regions that can take work,
	// but never more regions than the group has instances.
	DivideCapacity Divide = "capacity"
	// DivideEven divides evenly, among as many regions as DivideCapacity uses.
	DivideEven Divide = "even"
	// DivideWeighted divides in proportion to the weights of `prefer`, among the regions with a
	// positive weight, bounded as for DivideCapacity. Other regions take the overflow.
	DivideWeighted Divide = "weighted"
)

// RegionsSpec is the effective `regions` section of a group.
type RegionsSpec struct {
	// Allow holds selectors. A region must match one of them. Empty: any region is allowed.
	Allow  []Selector
	Prefer []Preference
	Near   []Near
	// SpreadMin and SpreadMax bound the number of regions; 0: no bound. If spread.min cannot be
	// met, the share of the missing regions stays unplaced, and the rest is placed.
	SpreadMin, SpreadMax int
	// Divide is the rule of the spec. Empty: the default rule. See ruleOf.
	Divide Divide
}

// Selector matches a region by name, labels or both. The empty selector matches no region.
type Selector struct {
	Name   string
	Labels map[string]string
}

// Preference adds Weight (-100..100) to the score of matching regions.
type Preference struct {
	Selector Selector
	Weight   int
}

// Unknown says how a required near clause treats an edge without a fresh measurement. The wire enum
// is UNKNOWN_ and upper case.
type Unknown string

const (
	// UnknownRefuse is the default.
	UnknownRefuse    Unknown = "refuse"
	UnknownPredicted Unknown = "predicted"
	UnknownAccept    Unknown = "accept"
)

// Near asks for a short network distance to a region, to the nearest region with some labels, to
// the nearest region that serves a domain, or to a point on the map.
type Near struct {
	Selector Selector
	// Domain, if not empty, is used instead of Selector. See Snapshot.Origins.
	Domain string
	// Location, if not nil, is used instead of Selector. No edge leads to a point, so the estimate
	// decides, whatever Unknown says.
	Location *topology.Location
	// MaxRTT is the bound, if Required. It is also the distance at which the clause adds half of
	// Weight to the score. 0: no bound, and half of Weight at 100 ms.
	MaxRTT time.Duration
	// Data, if not 0, is used instead of MaxRTT: the bytes that an instance reads from the target. The clause
	// adds half of Weight where moving them takes dataHalf.
	Data int64
	// Percentile is 50, 90 or 99; 0 means 50.
	Percentile topology.Percentile
	Required   bool
	Unknown    Unknown
	// Weight is the clause's weight in the score, 0..100.
	Weight int
}
