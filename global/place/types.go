// Package place decides which slots go to which region: one snapshot of jobs,
// regions and distances in, one printable plan with reasons out. Pure; the
// same snapshot gives the same plan, and a snapshot in which nothing is to be
// done gives an empty one.
package place

import (
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/topology"
)

// Snapshot is everything a plan depends on. Plan does not change it.
type Snapshot struct {
	// Regions sorted by name, each name once.
	Regions []Region
	// Jobs in any order, each namespace/name once. Quiet jobs cost little.
	Jobs []Job
	// Returned is the memory of rejected and returned work. The shell bounds it.
	// An entry counts until its region starts a new session, for a minute, and
	// while Backoff lasts; its words for as long as the job is pending.
	Returned []Returned
	// Topology answers distances; of both directions the worse counts. Nil =
	// nothing is known.
	Topology *topology.View
	// Origins are the regions that serve a domain, for Near.Domain; those that do
	// not exist are ignored.
	Origins map[string][]string
	// Terse leaves out Plan.Groups' regions (scores and verdicts of each region)
	// of jobs without Explain.
	Terse bool
}

// Region is one region with its latest report.
type Region struct {
	Name   string
	Labels map[string]string
	// Cordoned: takes no new slots.
	Cordoned bool
	// Connected: a live session exists.
	Connected bool
	// Lost: a verdict gave its work away.
	Lost bool
	// Unborn: no cluster has ever presented itself under this name.
	NeverConnected bool
	// DisconnectedFor is how long there has been no session.
	DisconnectedFor time.Duration

	// HasReport is false until the first report (a checkpoint counts as one).
	HasReport bool
	ReportAge time.Duration
	// ReportSequence counts the reports which the global tier has received from
	// this region, over all sessions; see Returned.
	ReportSequence uint64
	// SlotsRevision: slots with a later generation are not in the report yet and
	// are charged here.
	SlotsRevision int64
	// Fits are exact counts by Ask.Hash for subscribed asks.
	Fits map[uint64]int
	// NoFitReasons says of asks that fit nowhere why, in the region's words.
	NoFitReasons map[uint64]Returned
	// Bins estimate every other ask; see Bin.
	Bins []Bin
	// Drivers are healthy on some node; empty: the region did not say.
	Drivers []string
	// Free and Capacity are totals over ready nodes, for the score only.
	Free, Capacity Resources
	// CPU and memory in use, 0..1; shown.
	CPUUtilisation, MemoryUtilisation float64
	NodesReady                        int
	// QueueLength is how many accepted instances wait for a node.
	QueueLength int
}

// Bin is a group of nodes each of which has at least Free left.
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

// Returned is a refusal that is not forgotten yet: the region rejected or
// returned this ask, and is skipped for it until a later report (a greater
// ReportSequence) carries an exact count above zero for it. So the shell
// subscribes the asks of pending groups first.
type Returned struct {
	Namespace, Job, Group string
	// Ask is the hash of what was returned; 0 = only Backoff counts, and where
	// that is 0 only the words.
	Ask    uint64
	Region string
	Reason string
	// Message has the region's figures; Words say it all for people, Reason
	// included. Either may be empty.
	Message, ReasonText string
	Counts              []region.CountedReason
	// ReportSequence is the region's at the time of the return. A later one may
	// be stored to hold the ask back for longer.
	ReportSequence uint64
	// Backoff is for how long the region is not to get this very group again,
	// whatever its reports say: it gave it back time and again for a reason that
	// no report shows. 0 = no such thing.
	Backoff time.Duration
}

// JobType is service, batch or system; as JOB_TYPE_.
type JobType string

const (
	Service JobType = "service"
	Batch   JobType = "batch"
	System  JobType = "system"
)

// Job is one stored job and the slots it has.
type Job struct {
	Namespace, Name string
	Version         int64
	// Run: slots of another one are rewritten, see region.Slot.
	Run  int64
	Type JobType
	// Priority 0..100, higher first.
	Priority int
	// Revision orders jobs of equal priority: etcd revision of the submit.
	Revision int64
	Stopped  bool
	// Groups sorted by name.
	Groups []Group
	// Colocate are sets of group names that share their regions.
	Colocate [][]string
	// Slots of every group, also of groups that the spec no longer has; sorted
	// by group, from, region. System slots are [0,1) with System set.
	Slots []region.Slot
	// Disconnected are owned instances that no node of their region takes, and that may
	// still run on a lost one; see Away.
	Disconnected []Disconnected
	// Breaches are the required bounds that instances do not keep, see Follow.
	Breaches []Breach
	// Down counts, by group, owned instances that shall run and do not, as far as
	// regions have said; only read of groups with a sustained breach.
	Down map[string]int
	// Summary is what regions said of the job, sorted by region; only read while a
	// version that restarts groups is rolled out.
	Summaries []Summary
	// Explain asks for the full explanation even if nothing is to be done.
	Explain bool
}

// Group is what a plan needs to know of a group.
type Group struct {
	Name string
	// UnchangedSince is the version since which the group's work is what it is: what is
	// done of an earlier one is done anew. 0 = the run began with it.
	UnchangedSince int64
	// Count is not used for system jobs.
	Count   int
	Ask     Ask
	Regions RegionsSpec
	// MaxParallel is how many instances may be away at a time for a move or a new
	// version; 0 = 1, but for a system job 0 = every region at once.
	MaxParallel int
	// WaitedFor is how long instances have been without an owner while none was
	// given one, and Tried where the group was held lately, see HoldAfter.
	WaitedFor    time.Duration
	HoldAttempts []HoldAttempt
	// Released is what regions gave up because a plan took it back, and what no plan
	// has placed since. It comes before what others wait for, whatever the
	// priority; what has an owner is ignored.
	Released []Released
	// OnDisconnect is carried for the failover that comes with verdicts.
	OnDisconnect OnDisconnect
}

// Released are instances From ≤ i < To that a region gave up. They are placed
// elsewhere, as was promised when they were taken back.
type Released struct {
	Region   string
	From, To int
}

// OnDisconnect is the group's choice for a region that is cut off.
type OnDisconnect struct {
	After   time.Duration
	Stop    bool
	Replace bool
}

// Divide says how instances are divided among regions; as DIVIDE_.
type Divide string

const (
	// DivideCapacity takes the best regions, as few as hold everything but at
	// least spread.min, and divides among those min in proportion to what fits;
	// what they cannot hold overflows to the next best ones.
	DivideCapacity Divide = "capacity"
	// DivideEven divides evenly among spread.max regions; without max among
	// spread.min; without either among all that can take work.
	DivideEven Divide = "even"
	// DivideWeighted divides in proportion to the weights of `prefer` among the
	// regions with a positive weight, bounded as for even; others take overflow.
	DivideWeighted Divide = "weighted"
)

// RegionsSpec is the effective `regions` of a group.
type RegionsSpec struct {
	// Allow: a region must match one. Empty = any.
	Allow  []Selector
	Prefer []Preference
	Near   []Near
	// SpreadMin and SpreadMax bound the number of regions; 0 = no bound. Of a
	// group whose min cannot be had, the share of the missing regions stays
	// unplaced and the rest is placed.
	SpreadMin, SpreadMax int
	// Divide; empty = capacity.
	Divide Divide
}

// Selector matches a region by name, labels or both; the empty one matches
// nothing.
type Selector struct {
	Name   string
	Labels map[string]string
}

// Preference adds Weight (-100..100) to matching regions.
type Preference struct {
	Selector Selector
	Weight   int
}

// Unknown says what a required near does with an edge that was never measured
// or is not ok; as UNKNOWN_.
type Unknown string

const (
	// UnknownRefuse is the default.
	UnknownRefuse    Unknown = "refuse"
	UnknownPredicted Unknown = "predicted"
	UnknownAccept    Unknown = "accept"
)

// Near asks for network closeness to a region, to the nearest of the regions
// with some labels or of those that serve a domain, or to a point.
type Near struct {
	Selector Selector
	// Domain, if not empty, is used instead of Selector, see Snapshot.Origins.
	Domain string
	// Location, if not nil, is used instead of Selector. There is no edge to a
	// point: the estimate decides, whatever Unknown says.
	Location *topology.Location
	// MaxRTT is the bound when Required, and where the score is half of Weight.
	// 0 = no bound, and a scale of 100 ms.
	MaxRTT time.Duration
	// Percentile 50, 90 or 99; 0 = 50.
	Percentile topology.Percentile
	Required   bool
	Unknown    Unknown
	// Weight 0..100 in the score.
	Weight int
}
