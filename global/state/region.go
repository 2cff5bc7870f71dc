package state

import (
	"cmp"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/latency"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/sets"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// maxRemovals is how many removed slots a region's outbox keeps. A region that missed more of them
// gets the full set.
const maxRemovals = 4096

// Region is a region of the federation, with its session if it has one. The state's lock guards it.
type Region struct {
	// The first fields are those that each plan reads of each region: see placed.same. Together they
	// take few lines of the processor's cache.

	Record *nusav1.Region
	// Session is the live session. It is nil while the region is not connected.
	Session  *Session
	Report   *nusav1.RegionReport
	ReportAt time.Duration
	// Reports is the number of reports that arrived in all sessions.
	Reports uint64
	// Refusals are the region's latest refusals of groups, oldest first.
	Refusals []Refusal
	// account holds the charges since the latest report.
	account place.Account
	Life    region.State

	Name     string
	Revision int64
	// Orders has an order for each slot that the region owns or owned, by Slot.WireKey.
	Orders *link.Outbox[Order]

	// ReportStale: the report comes from a checkpoint, so it is older than ReportAt by an unknown
	// time.
	ReportStale   bool
	Load          latency.LoadTracker
	Master        string
	MasterAddress string
	Version       string
	Servers       []*nusav1.RegionalServer
	Coordinate    *nusav1.Coordinate
	// Row is the position up to which the region's row of the matrix is known. A new session
	// continues from there.
	Row link.Position
	// SummariesAt is the position up to which the region's summaries are known. A new session
	// continues from there.
	SummariesAt link.Position
	// SummaryKeys are the keys of the known summaries, with the number of the record of the checkpoint that has
	// the summary: see checkpointed.
	SummaryKeys map[string]int32
	// CheckpointDue: summaries have changed since the latest checkpoint. ReportDue: a report has
	// arrived since then.
	CheckpointDue, ReportDue bool
	Stamp                    uint64
	// Refused says why the latest hello was refused. It is empty once a session begins.
	Refused string
	// OtherCluster says that another cluster of this name was refused since the election, and no
	// session has begun since.
	OtherCluster bool
	// Unordered is the number of instances that the region runs without an order, by its latest
	// request for a lease. See State.Unconfirmed.
	Unordered int
	// Failover is set while the region is silent or lost.
	Failover *Failover
	// Auth is what the region has stored of who may do what.
	Auth AuthCopy
	// Changes is the number of the latest change that concerns the region's slots. It counts
	// changes of slots that the region owns or owned, of the jobs of these slots, and of what plans
	// say about the slots.
	Changes uint64
	// Drain says in one line how far the drain of the region has come.
	Drain string
	// DrainLeft is the number of instances that Drain counts, and DrainAt is when they were counted.
	DrainLeft int
	DrainAt   time.Duration
	// Review is the number of instances that verdicts moved to other regions and that wait for an
	// operator. They return only when an operator applies the return.
	Review int
	// Disconnected holds the instances of jobs that may still run on lost nodes and fit on no other
	// node, as reported in the present session.
	Disconnected map[JobKey][]*nusav1.DisconnectedInstances

	// cutSince is when the silence began that an event has reported. It is nil while the region is
	// not cut off.
	cutSince *time.Duration
	// placed are the regions of the placer, among which this one is at placedAt. touched: it is in placed.touched.
	placed   *placedRegions
	placedAt int
	touched  bool
	// fromReport is the latest report in the form that package place takes; nil: not made yet.
	fromReport *place.Region
	// shownAwaited is the value of Sight.Awaited that watches were woken for.
	shownAwaited bool
	// shownFailover is the part of Failover that watches were woken for.
	shownFailover SlotFailover
	checkpoint    []*loadedCheckpoint // only while loading
	stored        checkpointed
}

// Session is a region's live stream, in the form that the rest of the active server uses.
type Session struct {
	// Number identifies the stream within one leadership term.
	Number uint64
	// Conn returns the tunnel to the region's own services. The first call makes the tunnel, because
	// few regions are called and a tunnel takes memory.
	Conn func() (*grpc.ClientConn, error)
	// Wake makes the stream send what is unsent. It does not block.
	Wake func()
	// WakeLater is like Wake, for messages that the region does not wait for. It lets some time
	// pass, so that later changes are sent together with this one. The lock is held.
	WakeLater func()
	// Refuse ends the stream and sends the region the reason.
	Refuse func(message string)
	// Unsent names the sets that must be sent to the region again. The state's lock guards it.
	Unsent Unsent
}

// Unsent names the sets that have changed since they were last sent to a region.
type Unsent struct{ Demand, Asks, Origins, Column, Auth bool }

// Wake makes the region's stream send what is unsent, if the region has a stream.
func (r *Region) Wake() {
	if r.Session != nil {
		r.Session.Wake()
	}
}

// EndStream ends the region's stream if one of the effects requires it. The effects come from a
// step of the region's session state. The lock is held.
func (r *Region) EndStream(effects []region.Effect) {
	for _, e := range effects {
		if e.Kind == region.End && r.Session != nil && r.Session.Number == e.Stream {
			r.Session.Refuse(e.Message)
		}
	}
}

func (r *Region) toTopology() topology.Region {
	return topology.Region{
		Name: r.Name, Location: topo.LocationFromProto(r.Record.GetDefinition().GetLocation()),
		Labels: r.Record.GetDefinition().GetLabels(), Coordinate: topo.CoordinateFromProto(r.Coordinate),
	}
}

// Sight says which regions are cut off at one moment. The zero value knows no region.
type Sight struct {
	st  *State
	now time.Duration
}

// CutOff returns how long a region has been silent, and whether it counts as cut off. The lock is
// held.
func (v Sight) CutOff(name string) (silent time.Duration, cut bool) {
	if v.st == nil || v.st.Regions[name] == nil {
		return 0, false
	}
	return v.st.Regions[name].CutOff(v.st.SessionConfig(), v.now)
}

// Awaited returns the time since this server became the active one, and whether the region has not
// connected since then. The lock is held.
func (v Sight) Awaited(name string) (since time.Duration, awaited bool) {
	if v.st == nil || v.st.Regions[name] == nil {
		return 0, false
	}
	r := v.st.Regions[name]
	return v.now - v.st.began, r.Record.GetClusterId() != "" && !r.Life.Met
}

// nothingRuns reports whether an operator has stated that nothing runs in a region any more. The lock
// is held.
func (v Sight) nothingRuns(name string) bool {
	return v.st != nil && v.st.Regions[name] != nil && v.st.Regions[name].Record.GetLost().GetNothingRuns()
}

// notHome returns State.NotHome, or nil for the zero Sight. The lock is held.
func (v Sight) notHome() map[string]JobSet {
	if v.st == nil {
		return nil
	}
	return v.st.NotHome
}

// Absence describes a region without a session, for example "cut off for 20s". The lock is held.
func (v Sight) Absence(name string) string {
	silent, cut := v.CutOff(name)
	since, awaited := v.Awaited(name)
	switch {
	case v.st.Regions[name].Record.GetClusterId() == "":
		return "defined, and has never connected"
	case awaited && cut:
		return "cut off since the election " + jobstatus.Span(since) + " ago, or for longer"
	case awaited:
		return "reconnecting since the election " + jobstatus.Span(since) + " ago"
	case cut:
		return "cut off for " + jobstatus.Span(silent)
	}
	return "reconnecting for " + jobstatus.Span(silent)
}

// outlook says what will happen to slots of a region that is cut off. If some of them move, it
// describes the one that moves first.
func (v Sight) outlook(slots []region.Slot, name string) jobstatus.Outlook {
	f := v.st.Regions[name].Failover
	var first *SlotFailover
	for _, s := range slots {
		if f == nil {
			break
		}
		due, known := f.Slots[s.Key()]
		if known && (first == nil || due.Moves && (!first.Moves || due.Due < first.Due)) {
			first = &due
		}
	}
	if first == nil {
		return jobstatus.Outlook{Why: "waits until " + name + " returns"}
	}
	return v.outlookOf(*first)
}

func (v Sight) outlookOf(f SlotFailover) jobstatus.Outlook {
	return jobstatus.Outlook{Moves: f.Moves, Due: max(0, f.Due-v.now), Why: f.Message}
}

// CutOff returns how long the region has been silent, and whether it counts as cut off, because of
// a verdict or because the silence is long enough. The lock is held.
func (r *Region) CutOff(c region.Config, now time.Duration) (silent time.Duration, cut bool) {
	silent, cut = region.CutOff(c, r.Life, now)
	return silent, cut || r.Record.GetLost() != nil && r.Session == nil
}

// ToProto returns the region as the API shows it. The lock is held.
func (r *Region) ToProto(see Sight) *nusav1.Region {
	out := &nusav1.Region{
		Definition: r.Record.GetDefinition(), Cordoned: r.Record.GetCordoned(), ClusterId: r.Record.GetClusterId(),
		DefinedByOperator: r.Record.GetDefinedByOperator(), Revision: r.Revision,
		Incarnation: r.Life.Incarnation, Term: r.Life.Term, Fence: r.Life.Fence,
		MasterAddress: r.MasterAddress, Master: r.Master, Servers: r.Servers,
		AppliedIndex: r.Record.GetAppliedIndex(), FeatureLevel: r.Record.GetFeatureLevel(),
		Lost: r.Record.GetLost(), LostAt: r.Record.GetLostAt(), Draining: r.Record.GetDraining(),
	}
	silent, cut := see.CutOff(r.Name)
	switch {
	case r.Session != nil && !cut:
		out.State = nusav1.RegionState_REGION_STATE_CONNECTED
	case r.Record.GetClusterId() == "":
		out.State = nusav1.RegionState_REGION_STATE_DEFINED
	case r.Record.GetLost() != nil:
		out.State = nusav1.RegionState_REGION_STATE_LOST
	default:
		out.State = nusav1.RegionState_REGION_STATE_DISCONNECTED
	}
	since, awaited := see.Awaited(r.Name)
	if awaited {
		out.Awaited = durationpb.New(since)
	}
	if cut || r.Session == nil && r.Record.GetClusterId() != "" {
		out.FailoverMessage = see.st.FailoverPaused
		if cut || !awaited {
			out.Silent = durationpb.New(silent)
		}
	}
	addAuth(out, r, see, silent)
	r.addFailover(out, see, cut)
	if out.FailoverMessage == "" && out.Draining { // r.Drain changes a little later than the record
		out.FailoverMessage = r.Drain
		if reported := liveIn(r.Report); r.Drain != "" && r.ReportAt <= r.DrainAt && reported > r.DrainLeft {
			out.FailoverMessage += fmt.Sprintf("; its report is older, and still counts %d", reported)
		}
	}
	if out.FailoverMessage == "" && r.Session != nil && r.Review > 0 {
		out.FailoverMessage = fmt.Sprintf("instances that moved to other regions and wait for `nusa region failback %s`: %d", r.Name, r.Review)
	}
	if note := cmp.Or(see.st.conflictNote(r), see.st.confirmNote(r)); note != "" {
		out.FailoverMessage = note
	}
	if r.Refused != "" {
		out.FailoverMessage = r.Refused
	}
	out.Returning = r.Record.GetReturning()
	if r.Life.CommitBlocked > 0 {
		out.CommitBlocked = durationpb.New(r.Life.CommitBlocked)
	}
	if r.Report != nil {
		out.Report = r.Report
	}
	if r.Report != nil && !r.ReportStale {
		out.ReportAge = durationpb.New(see.now - r.ReportAt)
	}
	if r.Session == nil {
		out.Servers = nil
		for _, s := range r.Servers {
			s = proto.CloneOf(s)
			s.Leader, s.Healthy = false, false // unknown while disconnected
			out.Servers = append(out.Servers, s)
		}
	}
	return out
}

// addFailover adds to a region what the latest plan says about its slots. The lock is held.
func (r *Region) addFailover(out *nusav1.Region, see Sight, cut bool) {
	// The plan may be a second old. What it says about a region that has returned or was declared lost
	// since then is not true any more.
	if f := r.Failover; f != nil && f.fence == r.Record.GetFence() && (cut || r.Session == nil) {
		outlook := see.outlookOf(f.SlotFailover)
		out.FailoverMessage = outlook.Text(r.Name)
		if last := f.Last - see.now; outlook.Moves && outlook.Due > 0 && last-outlook.Due >= time.Second {
			out.FailoverMessage = fmt.Sprintf("its first work would move in %s, the last in %s, unless %s returns",
				jobstatus.Span(outlook.Due), jobstatus.Span(last), r.Name)
		}
		if outlook.Moves {
			out.MoveDue = durationpb.New(outlook.Due)
		}
	}
}

// liveIn counts the allocations that have not ended, by a region's report.
func liveIn(rep *nusav1.RegionReport) int {
	a := rep.GetAllocations()
	return int(a["pending"] + a["starting"] + a["running"])
}

// Accelerators counts the accelerators of all regions by model. known is false if a region has not
// said what it has, or if there is no region. The lock is held.
func Accelerators(s *State) (have map[string]int32, known bool) {
	have = map[string]int32{}
	for _, r := range s.Regions {
		if r.Report.GetGpus() == nil {
			return nil, false
		}
		for model, n := range r.Report.GetGpus().GetModels() {
			have[model] += n
		}
	}
	return have, len(s.Regions) > 0
}

// SetReport stores a region's report. stale: the report comes from a checkpoint. The lock is held.
func (r *Region) SetReport(rep *nusav1.RegionReport, at time.Duration, stale bool) {
	was, earlier := r.reported(), r.Report
	r.Report, r.ReportAt, r.ReportStale = rep, at, stale
	r.fromReport = reportToPlace(r.Name, rep, earlier, was)
	r.account.Reported(r.fromReport)
	r.Touch()
}

// Without returns the charges of the region, except the charges of one job. The lock is held.
func (r *Region) Without(j *Job) place.Charges {
	var of []place.Charge
	for s := range j.Slots.All() {
		of = append(of, place.ChargesOf(j.Place(), &s)...)
	}
	return r.account.Without(r.reported(), of)
}

// Order is the part of an order that an outbox keeps. The rest is read from the slot when the order
// is sent: see SlotOrder. Each change of a slot is an order to every region that owns it or owned
// it.
type Order struct {
	Revision int64
	// job has the slot. record has the spec. It is nil for an order without a spec.
	job    *Job
	record *Record
	// echo: the order only shows the owner its own answer to the offer of the slot, so the owner has the
	// spec. See SlotOrder.
	echo bool
}

// showsAnswer reports whether a slot changed only because its owner accepted it. The order then
// shows the owner its own answer.
func showsAnswer(old, s *region.Slot) bool {
	return old.State == region.Offered && s.State == region.Accepted && old.Region == s.Region && old.Generation == s.Generation &&
		old.To == s.To && old.JobVersion == s.JobVersion && old.Run == s.Run && old.Desired == s.Desired
}

// OrderCopy has what an order consists of. It is made under the lock, and can be read without the lock.
type OrderCopy struct {
	slot     region.Slot
	revision int64
	attempts []*nusav1.InstanceAttempts
	spec     *Record // nil: the order has no spec
	none     bool    // there is no order
}

// CopyOrder sets out to what the order about a slot consists of. Its message is nil if the region does not own the slot
// and did not own it before. The region has got the orders after the revision `since`, so a slot that was offered after
// that and is accepted needs no spec: the region's answer shows that its log has the spec. With the greatest number
// each order has its spec. The lock is held.
func CopyOrder(out *OrderCopy, st *State, name, key string, o Order, since uint64) {
	*out = OrderCopy{revision: o.Revision}
	s := &out.slot
	if !readOrdered(s, o, name, key) {
		out.none = true
		return
	}
	if !s.Vacant && s.Region == name {
		s.Former, s.Home, s.Unbound = nil, "", s.Bound && s.Unbound // regions do not need these values
		out.attempts = attemptsFor(st, s)
		if !o.echo || uint64(s.Generation) <= since {
			out.spec = o.record
		}
		return
	}
	if i := formerOf(s, name); i >= 0 {
		becomeFormer(s, i)
		return
	}
	out.none = true
}

// Message returns the order in the form that a region gets, or nil if there is none.
func (o *OrderCopy) Message() *nusav1.SlotOrder {
	if o.none {
		return nil
	}
	return &nusav1.SlotOrder{Revision: o.revision, Slot: SlotToProto(o.slot), Attempts: o.attempts, Spec: o.spec.encoded()}
}

// The fields of a SlotOrder, and of the SlotOrders that contain it.
const (
	orderSlot     protowire.Number = 1
	orderSpec     protowire.Number = 2
	orderRevision protowire.Number = 3
	ordersOrders  protowire.Number = 3
)

// Append appends what Message returns, in its encoded form as one of SlotOrders.orders. It uses scratch as memory and
// returns that. It returns false for an order with values that only the generated code encodes.
func (o *OrderCopy) Append(to, scratch []byte) (out, memory []byte, ok bool) {
	if o.none {
		return to, scratch, true
	}
	slot, err := appendSlot(scratch[:0], &o.slot)
	if err != nil || len(o.attempts)+len(o.slot.Former) > 0 {
		return to, scratch, false
	}
	spec := o.spec.specSize()
	size := protowire.SizeTag(orderSlot) + protowire.SizeBytes(len(slot)-1) + protowire.SizeTag(orderRevision) + protowire.SizeVarint(uint64(o.revision))
	if spec > 0 {
		size += protowire.SizeTag(orderSpec) + protowire.SizeBytes(spec)
	}
	to = protowire.AppendVarint(protowire.AppendTag(to, ordersOrders, protowire.BytesType), uint64(size))
	to = protowire.AppendBytes(protowire.AppendTag(to, orderSlot, protowire.BytesType), slot[1:]) // without the format
	if spec > 0 {
		to = protowire.AppendVarint(protowire.AppendTag(to, orderSpec, protowire.BytesType), uint64(spec))
		to = o.spec.appendSpec(to)
	}
	return protowire.AppendVarint(protowire.AppendTag(to, orderRevision, protowire.VarintType), uint64(o.revision)), slot, true
}

// Size returns the approximate size of the encoded order. proto.Size takes as long as encoding.
func (o *OrderCopy) Size() int {
	const numbers = 128 // bytes of the other fields
	s := &o.slot
	return numbers + o.spec.specSize() + len(s.Namespace) + len(s.Job) + len(s.Group) + len(s.Region) +
		len(s.Message) + len(s.PlacedBecause) + len(s.ReturnTo)
}

// SlotOrder returns the message of CopyOrder. The lock is held.
func SlotOrder(st *State, name, key string, o Order, since uint64) *nusav1.SlotOrder {
	var out OrderCopy
	CopyOrder(&out, st, name, key, o, since)
	return out.Message()
}

// HashOrders returns the hash of all orders of a region. A region that has exactly these orders finds the
// same hash. The lock is held.
func HashOrders(st *State, r *Region) uint64 {
	return sets.HashOrders(st.GlobalLevel, func(yield func(string, int64) bool) {
		for key, o := range r.Orders.All() {
			if !yield(key, o.Revision) {
				return
			}
		}
	})
}

// readOrdered sets a slot to that of an order, with the given wire key of a region. It returns false if there is
// none. The lock is held.
func readOrdered(s *region.Slot, o Order, at, key string) bool {
	return o.job != nil && (o.job.Slots.Read(key, s) || o.job.Slots.Read(key+"@"+at, s))
}

// becomeFormer makes a slot the order to the former owner at position i of its list. The order names
// the generation that the region had. To end a slot, the region does not need the job.
func becomeFormer(s *region.Slot, i int) {
	f := s.Former[i]
	state := region.Accepted
	if s.State == region.Done || s.Desired == region.DesiredStop {
		state = region.Done // what has completed in that region need not be reported
	}
	s.Desired, s.Region, s.Generation, s.State = s.DesiredOfFormer(i), f.Region, f.Generation, state
	s.Former, s.Home, s.ReturnTo, s.Hold, s.UnlessConnected, s.Vacant = nil, "", "", 0, false, false
	// A version that a lease binds waits until nothing runs in that region: see place.Job.awaited.
	s.Bound, s.Unbound, s.Reason, s.Message, s.PlacedBecause = false, f.MayRun, "", "", ""
}
