package plant

// Bug is the name of a planted bug.
type Bug string

// The bugs. Each comment says what goes wrong while the bug is planted.
const (
	// GrantBeforeOrders: a lease is granted before the region has stored its orders.
	GrantBeforeOrders Bug = "grant before orders"
	// DeposedServes: a global server serves after its candidacy may have ended.
	DeposedServes Bug = "deposed server serves"
	// RenewWithoutKey: a renewal proves the lease of the store, not the election key.
	RenewWithoutKey Bug = "renewal without the key"
	// NoDrift: the waits for a lease have no margin for clocks that are slow or fast.
	NoDrift Bug = "no margin for clocks"
	// WallClock: wall clocks, which may jump, decide when a lease is over.
	WallClock Bug = "wall clocks"
	// LeaseForgotten: a new active server waits as long as its own setting of the lease,
	// not as long as the longest lease that was granted.
	LeaseForgotten Bug = "lease length forgotten"
	// LateStart: an agent does not check the lease's deadline when it forks a task.
	LateStart Bug = "late start"
	// SuspendedKill: the time between stop signal and kill does not pass while the host is
	// suspended.
	SuspendedKill Bug = "kill stands still in suspend"
	// OlderRenewal: a late renewal of a lease overwrites a newer one.
	OlderRenewal Bug = "older renewal counts"
	// NewestOnly: only the newest version of a job determines how long to wait for the
	// stop of a former owner's instances.
	NewestOnly Bug = "newest version only"
	// FenceBack: a region's hello stores again a fence that was read before the
	// transaction.
	FenceBack Bug = "hello writes the fence back"
	// OldStore: a store that was restored from an old copy is used.
	OldStore Bug = "old store serves"
	// OldLog: a region's log that was restored from an old copy is used.
	OldLog Bug = "old log serves"
	// AckBeforeSync: changes are acknowledged before they are on disk.
	AckBeforeSync Bug = "acknowledged before stored"
	// AnswerOnce: a region sends each answer about a slot only once.
	AnswerOnce Bug = "answer sent once"
	// DeltaLate: a resumed stream of changes leaves out one change.
	DeltaLate Bug = "delta resumed late"
	// Unverified: a master grants leases without verifying that it still leads.
	Unverified Bug = "grant without verified leadership"
	// ActBeforeStore: an agent acts on an order before the order is stored.
	ActBeforeStore Bug = "act before store"
	// LostAtElection: a new master declares nodes lost without waiting for one lease
	// first.
	LostAtElection Bug = "node lost at an election"
	// LevelIgnored: what a lease binds is placed in regions of an earlier feature level.
	LevelIgnored Bug = "feature level ignored"
	// NoConfirmation: after a recovery of the store, leases are granted before every region
	// has confirmed what it runs.
	NoConfirmation Bug = "no confirmation after a recovery"
	// BindingForgotten: after an upgrade of a region, agents that do not know a lease
	// count as if they had.
	BindingForgotten Bug = "binding counts before it is known"
	// MassLossIgnored: regions are declared lost although many fell silent together.
	MassLossIgnored Bug = "mass loss ignored"
	// StartingForgotten: instances of an array that do not run yet do not count in parallel.
	StartingForgotten Bug = "starting instances forgotten"
	// RetryForever: an instance that has used its retries is tried again.
	RetryForever Bug = "retried for ever"
	// DownForgotten: a rollout does not count the instances that are down already.
	DownForgotten Bug = "down instances forgotten"
	// HealthyAtOnce: a replaced instance counts as healthy as soon as it runs.
	HealthyAtOnce Bug = "healthy at once"
	// OverlapForgotten: a run of a schedule begins although another one has not ended.
	OverlapForgotten Bug = "overlap forgotten"
	// RunBeforeRecord: the run of a schedule is stored, and the schedule's record is not.
	RunBeforeRecord Bug = "run before its record"
	// TimesForgotten: a new active server lets schedules begin with its own term.
	TimesForgotten Bug = "times forgotten at an election"
	// DependsForgotten: a step of a workflow does not wait for others.
	DependsForgotten Bug = "dependencies forgotten"
	// LimitForgotten: a step of a workflow is tried again without a limit.
	LimitForgotten Bug = "limit of retries forgotten"
	// PromotedAtOnce: canaries are promoted as soon as all of them run.
	PromotedAtOnce Bug = "promoted at once"
	// StableForgotten: an instance that moves during a held rollout gets the new version.
	StableForgotten Bug = "stable version forgotten"
	// HoldForgotten: a version whose canaries are not promoted replaces the other instances.
	HoldForgotten Bug = "hold forgotten"
	// OverrideEnded: an override ends with the next order about its job.
	OverrideEnded Bug = "override ends with an order"
	// BoundOfSlot: an override bounds each slot of a group, not all of them together.
	BoundOfSlot Bug = "override bounds each slot"
	// RegionsAtOnce: a version goes to all regions at once.
	RegionsAtOnce Bug = "all regions at once"
	// TurnForgotten: a version goes to the regions in the order of their names.
	TurnForgotten Bug = "order of regions forgotten"
	// TriggerOverlaps: a run that an operator asks for begins although another one has not ended.
	TriggerOverlaps Bug = "trigger overlaps"
	// BackfillStands: a backfill begins the same time again.
	BackfillStands Bug = "backfill stands still"
	// UnitsForgotten: the units that steps hold do not count when a semaphore grants units.
	UnitsForgotten Bug = "held units forgotten"
	// RetryAll: a retry from a step runs every step of the workflow again.
	RetryAll Bug = "retry runs every step"
	// EndForgotten: a step does not see that its job has ended after it was asked to stop.
	EndForgotten Bug = "end of a stopped step forgotten"
	// PauseForgotten: the next region gets a version during the pause between two regions.
	PauseForgotten Bug = "pause between regions forgotten"
	// ContinueForgotten: a region in which a version has failed holds up the others, although the version goes on.
	ContinueForgotten Bug = "failed region holds up the others"
	// RevertForgotten: a failed version is not taken back, although its job asks for that.
	RevertForgotten Bug = "failed version stays"
	// UnprovenKept: a version is kept as healthy although some instances of it have not run.
	UnprovenKept Bug = "unproven version kept as healthy"
	// LastRule: the last retry rule that matches a failure decides, not the first one.
	LastRule Bug = "last retry rule decides"
	// LeaveForgotten: a rule with `other: region` lets the next attempt begin in the same region.
	LeaveForgotten Bug = "other region forgotten"
	// BackoffForgotten: a region that has returned an instance because of `other: region` gets it again at once.
	BackoffForgotten Bug = "region gets an instance back at once"
	// AttemptsForgotten: the attempts of an instance count from zero in the next region.
	AttemptsForgotten Bug = "attempts forgotten in another region"
	// MemoryForgotten: an instance has the memory of its job file again in the next region.
	MemoryForgotten Bug = "raised memory forgotten in another region"
	// MemoryUnbounded: the memory of a retry passes its limit.
	MemoryUnbounded Bug = "memory of a retry above its limit"
	// LetterTwice: it is not noted which instances have left a dead letter.
	LetterTwice Bug = "dead letter stored twice"
	// LetterOfEach: an attempt of a step that is tried again leaves a dead letter.
	LetterOfEach Bug = "dead letter of each attempt"
	// LetterOfNeighbour: an instance counts as one with a dead letter because an instance before it has one.
	LetterOfNeighbour Bug = "dead letter of a neighbour counts"
	// LettersUnread: a new active server does not ask for failed instances that it did not see fail.
	LettersUnread Bug = "failures before an election forgotten"
	// FailureUnhandled: a run of a workflow succeeds although no step has handled the failure of another one.
	FailureUnhandled Bug = "unhandled failure succeeds"
	// RetryFewer: a step is tried again once less than its limit.
	RetryFewer Bug = "one retry of a step too few"
	// ReboundKept: an override stays after a region has the orders of another federation.
	ReboundKept Bug = "override of a former federation stays"
	// ReboundEnded: an override ends when its region is bound to another federation, before that one has given orders.
	ReboundEnded Bug = "override ends at a rebind"
	// SchedulePauseForgotten: a new active server does not know that an operator has paused a schedule.
	SchedulePauseForgotten Bug = "pause of a schedule forgotten"
	// RuleForgotten: a new active server runs an earlier version of a schedule.
	RuleForgotten Bug = "version of a schedule forgotten"
)

// Bugs lists all bugs.
var Bugs = [...]Bug{GrantBeforeOrders, DeposedServes, RenewWithoutKey, NoDrift, WallClock, LeaseForgotten, LateStart, SuspendedKill,
	OlderRenewal, NewestOnly, FenceBack, OldStore, OldLog, AckBeforeSync, AnswerOnce, DeltaLate, Unverified, ActBeforeStore, LostAtElection, LevelIgnored, NoConfirmation,
	BindingForgotten, MassLossIgnored, StartingForgotten, RetryForever, DownForgotten, HealthyAtOnce,
	OverlapForgotten, RunBeforeRecord, TimesForgotten, DependsForgotten, LimitForgotten,
	PromotedAtOnce, StableForgotten, HoldForgotten, OverrideEnded, BoundOfSlot,
	RegionsAtOnce, TurnForgotten, TriggerOverlaps, BackfillStands, UnitsForgotten, RetryAll, EndForgotten,
	PauseForgotten, ContinueForgotten, RevertForgotten, UnprovenKept,
	LastRule, LeaveForgotten, BackoffForgotten, AttemptsForgotten, MemoryForgotten, MemoryUnbounded,
	LetterTwice, LetterOfEach, LetterOfNeighbour, LettersUnread, FailureUnhandled, RetryFewer,
	ReboundKept, ReboundEnded, SchedulePauseForgotten, RuleForgotten}
