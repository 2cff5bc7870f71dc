package plant

// Bug is the name of a planted bug.
type Bug string

// The bugs.
const (
	// GrantBeforeOrders: a lease is granted, and counts, before the orders are stored.
	GrantBeforeOrders Bug = "grant before orders"
	// DeposedServes: a global server serves after its candidacy may have ended.
	DeposedServes Bug = "deposed server serves"
	// RenewWithoutKey: a renewal proves the lease of the store, not the election key.
	RenewWithoutKey Bug = "renewal without the key"
	// NoDrift: clocks are taken to be exact.
	NoDrift Bug = "no margin for clocks"
	// WallClock: what a lease binds is replaced by wall clocks.
	WallClock Bug = "wall clocks"
	// LeaseForgotten: a successor waits for its own length of a lease.
	LeaseForgotten Bug = "lease length forgotten"
	// LateStart: the deadline is not checked at the fork.
	LateStart Bug = "late start"
	// SuspendedKill: the time until the kill stands still in suspend.
	SuspendedKill Bug = "kill stands still in suspend"
	// OlderRenewal: an older renewal overwrites a newer one.
	OlderRenewal Bug = "older renewal counts"
	// NewestOnly: only the newest version says how long to wait for an owner.
	NewestOnly Bug = "newest version only"
	// FenceBack: a hello writes the fence back that was read before its transaction.
	FenceBack Bug = "hello writes the fence back"
	// OldStore: a store that was restored from an old copy is used.
	OldStore Bug = "old store serves"
	// OldLog: a region's log that was restored from an old copy is used.
	OldLog Bug = "old log serves"
	// AckBeforeSync: what is not stored yet is acknowledged.
	AckBeforeSync Bug = "acknowledged before stored"
	// AnswerOnce: an answer is sent only once.
	AnswerOnce Bug = "answer sent once"
	// DeltaLate: a delta is resumed one change late.
	DeltaLate Bug = "delta resumed late"
	// Unverified: a master grants without a verified leadership.
	Unverified Bug = "grant without verified leadership"
	// ActBeforeStore: an agent acts on an order before the order is stored.
	ActBeforeStore Bug = "act before store"
	// LostAtElection: a node counts as absent before one lease after an election.
	LostAtElection Bug = "node lost at an election"
)

// Bugs are all bugs.
var Bugs = [...]Bug{GrantBeforeOrders, DeposedServes, RenewWithoutKey, NoDrift, WallClock, LeaseForgotten, LateStart, SuspendedKill,
	OlderRenewal, NewestOnly, FenceBack, OldStore, OldLog, AckBeforeSync, AnswerOnce, DeltaLate, Unverified, ActBeforeStore, LostAtElection}
