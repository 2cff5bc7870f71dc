package regional

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/accept"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// coalesce is how long changes wait for one another once there are many;
	// burst is how many go at once after a quiet time: an instance's way to
	// running is about as many.
	coalesce = 100 * time.Millisecond
	burst    = 5
	// repeatAnswers is after how long unanswered answers are sent again.
	repeatAnswers = 5 * time.Second
	// latencyEvery is how often changed edges are sent; refreshEdge after how
	// long an unchanged one is, so that its age stays true.
	latencyEvery = 5 * time.Second
	refreshEdge  = 30 * time.Second
	// maxBatchItems and maxBatchBytes bound a message of summaries.
	maxBatchItems = 512
	maxBatchBytes = 256 << 10
	// maxAnswers bounds the answers of one message.
	maxAnswers = 256
)

// upSession is one session with the global tier. One goroutine sends, one
// receives; what is to be sent is kept as "dirty", so that a slow link gets the
// latest state and not a queue.
type upSession struct {
	u      *uplink
	stream upStream
	client nusav1.FederationClient
	wake   chan struct{} // room for one
	lease  time.Duration
	every  time.Duration                  // between two reports
	inbox  *link.Inbox[*nusav1.SlotOrder] // only the receiver's

	mu        sync.Mutex
	ack       *nusav1.Position
	servers   bool
	answers   bool // slots may have changed
	critical  bool // the report may have changed in what is urgent
	reportNow bool
	latency   bool
	// regionLease counts the region's lease on Config.Clock. Nothing reads its
	// state yet: failover between regions is to stop by it what the region may
	// not run without a lease (disconnect.region.running: stop).
	regionLease lease.Holder

	// Only the sender reads what follows.
	cursor    *link.Cursor[*nusav1.JobSummary]
	told      map[string]*nusav1.SlotAnswer // answers already sent
	toldAt    time.Time
	edges     map[string]sentEdge
	last      *nusav1.RegionReport
	lastTook  time.Duration
	reportAt  time.Time // of the last report
	checkedAt time.Time // of the last look for something critical
	latencyAt time.Time
	leaseAt   time.Time
	// Limits of what is sent as things change.
	answerRate, summaryRate *rate.Limiter
}

type sentEdge struct {
	edge topology.Edge
	at   time.Time
}

func newUpSession(u *uplink, stream upStream, client nusav1.FederationClient, w *nusav1.GlobalWelcome) *upSession {
	every := w.GetReportInterval().AsDuration()
	if every <= 0 || every > u.l.s.cfg.ReportInterval {
		every = u.l.s.cfg.ReportInterval
	}
	return &upSession{
		u: u, stream: stream, client: client, wake: make(chan struct{}, 1),
		inbox: link.NewInbox[*nusav1.SlotOrder](maxSlots),
		lease: w.GetLease().AsDuration(), every: every,
		answers: true, reportNow: true, latency: true,
		told: map[string]*nusav1.SlotAnswer{}, edges: map[string]sentEdge{},
		answerRate:  rate.NewLimiter(rate.Every(coalesce), burst),
		summaryRate: rate.NewLimiter(rate.Every(coalesce), burst),
	}
}

func (ss *upSession) poke() {
	select {
	case ss.wake <- struct{}{}:
	default:
	}
}

// note changes what is to be sent and wakes the sender.
func (ss *upSession) note(change func()) {
	ss.mu.Lock()
	change()
	ss.mu.Unlock()
	ss.poke()
}

// take reads and clears a flag.
func (ss *upSession) take(flag *bool) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	was := *flag
	*flag = false
	return was
}

// sendAll sends what is due until ctx ends, a send fails, or the receiver ended:
// then received is true and err is the receiver's.
func (ss *upSession) sendAll(ctx context.Context, ended <-chan error) (err error, received bool) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, false
		case err := <-ended:
			return err, true
		case <-ss.wake:
		case <-timer.C:
		}
		next := time.Now().Add(time.Hour)
		for _, step := range []func(time.Time) (time.Time, error){
			ss.sendAck, ss.sendServers, ss.sendLease, ss.sendAnswers, ss.sendSummaries, ss.sendReport, ss.sendLatency,
		} {
			due, err := step(time.Now())
			if err != nil {
				if errors.Is(err, io.EOF) {
					return <-ended, true // the receiver gets the stream's status
				}
				return err, false
			}
			if !due.IsZero() && due.Before(next) {
				next = due
			}
		}
		timer.Reset(time.Until(next))
	}
}

func (ss *upSession) sendAck(time.Time) (time.Time, error) {
	ss.mu.Lock()
	ack := ss.ack
	ss.ack = nil
	ss.mu.Unlock()
	if ack == nil {
		return time.Time{}, nil
	}
	return time.Time{}, ss.stream.Send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_OrdersAck{OrdersAck: ack}})
}

func (ss *upSession) sendServers(time.Time) (time.Time, error) {
	if !ss.take(&ss.servers) {
		return time.Time{}, nil
	}
	return time.Time{}, ss.stream.Send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Update{
		Update: &nusav1.RegionUpdate{Servers: ss.u.l.s.servers()}}})
}

// sendLease asks for the region's lease three times in its duration.
func (ss *upSession) sendLease(now time.Time) (time.Time, error) {
	if ss.lease <= 0 {
		return time.Time{}, nil
	}
	if due := ss.leaseAt.Add(ss.lease / 3); now.Before(due) {
		return due, nil
	}
	ss.leaseAt = now
	ss.mu.Lock()
	id := ss.regionLease.Request(ss.u.l.s.cfg.Clock())
	ss.mu.Unlock()
	return now.Add(ss.lease / 3), ss.stream.Send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Lease{
		Lease: &nusav1.LeaseRequest{Id: id}}})
}

// granted counts the lease from the sending of its request.
func (ss *upSession) granted(g *nusav1.LeaseGrant) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.regionLease.Granted(g.GetId(), g.GetDuration().AsDuration())
}

// sendAnswers sends the answers that hold and were not sent yet, and all of
// them again every few seconds: they are repeated until the orders change.
func (ss *upSession) sendAnswers(now time.Time) (time.Time, error) {
	repeat := now.Sub(ss.toldAt) >= repeatAnswers
	ss.mu.Lock()
	dirty := ss.answers
	ss.mu.Unlock()
	if !dirty && !repeat {
		return ss.toldAt.Add(repeatAnswers), nil
	}
	if !repeat && !ss.answerRate.Allow() {
		return now.Add(coalesce / 4), nil
	}
	ss.take(&ss.answers)
	if repeat {
		ss.toldAt = now
	}
	held := map[string]*nusav1.SlotAnswer{}
	var out []*nusav1.SlotAnswer
	for _, a := range accept.Answers(ss.u.l.s.fsm.View()) {
		w := wire.SlotAnswerToProto(&a)
		key := state.SlotID(a.Namespace, a.Job, a.Group, a.From)
		held[key] = w
		if repeat || !proto.Equal(w, ss.told[key]) {
			out = append(out, w)
		}
	}
	ss.told = held
	for part := range slices.Chunk(out, maxAnswers) {
		if err := ss.stream.Send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Answers{Answers: &nusav1.SlotAnswers{Answers: part}}}); err != nil {
			return time.Time{}, err
		}
	}
	return ss.toldAt.Add(repeatAnswers), nil
}

// sendSummaries sends the jobs whose counts or reasons changed.
func (ss *upSession) sendSummaries(now time.Time) (time.Time, error) {
	ss.u.mu.Lock()
	again := ss.u.awayAgain(now)
	dirty := len(ss.u.dirty) > 0
	ss.u.mu.Unlock()
	if (dirty || ss.more()) && !ss.summaryRate.Allow() {
		return now.Add(coalesce / 4), nil
	}
	ss.u.sumUp()
	for {
		ss.u.mu.Lock()
		b, more := ss.cursor.NextWithin(maxBatchItems, maxBatchBytes, func(i link.Item[*nusav1.JobSummary]) int { return proto.Size(i.Value) })
		ss.u.mu.Unlock()
		if !more {
			return again, nil
		}
		out := &nusav1.JobSummaries{Full: b.Full, Last: b.Last, Removed: b.Removed, Position: wire.PositionToProto(state.Position(b.Position))}
		for _, i := range b.Items {
			out.Summaries = append(out.Summaries, i.Value)
		}
		if err := ss.stream.Send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Summaries{Summaries: out}}); err != nil {
			return time.Time{}, err
		}
	}
}

// more says that the full set is still to be sent.
func (ss *upSession) more() bool {
	ss.u.mu.Lock()
	defer ss.u.mu.Unlock()
	return ss.cursor.Full()
}

// sumUp brings the summaries in line with the committed state.
func (u *uplink) sumUp() {
	u.mu.Lock()
	dirty := u.dirty
	u.dirty = map[state.JobKey]struct{}{}
	u.mu.Unlock()
	// Read now: a change noted as dirty before is in this view. Not under the
	// lock, which whoever commits waits for.
	view := u.l.s.fsm.View()
	keys := slices.SortedFunc(maps.Keys(dirty), state.JobKey.Compare)
	sums := make([]*nusav1.JobSummary, len(keys))
	for i, k := range keys {
		sums[i] = u.l.summary(view, k)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, k := range keys {
		s := sums[i]
		u.noteAway(k, s)
		key := k.Namespace + "/" + wire.JobName(k.Job, k.Local, u.l.s.cfg.Region.GetName())
		old, held := u.summaries.Get(key)
		switch {
		case s == nil && held:
			u.summaries.Delete(key)
		case s != nil && (!held || !sameSummary(old, s)):
			u.summaries.Put(key, s)
		}
	}
}

// sameSummary compares all but the order.
func sameSummary(a, b *nusav1.JobSummary) bool {
	b = proto.CloneOf(b)
	b.Index = a.GetIndex()
	return proto.Equal(a, b)
}

// summary is the region's view of its part of a job; nil when it has none.
func (l *leader) summary(view *state.View, k state.JobKey) *nusav1.JobSummary {
	out := &nusav1.JobSummary{
		Namespace: k.Namespace, Job: k.Job, Local: k.Local,
		Groups: map[string]*nusav1.InstanceCounts{}, Reasons: map[string]*nusav1.GroupReasons{},
		Incarnation: l.cluster.Incarnation, Index: view.Index(),
	}
	out.Version, out.Run = about(view, k)
	for g := range view.JobGroups(k) {
		out.Groups[g.Key.Group] = wire.InstanceCountsToProto(g.Counts)
		if counts := l.reasons(view, g); len(counts) > 0 {
			out.Reasons[g.Key.Group] = &nusav1.GroupReasons{Reasons: counts}
		}
		out.Disconnected = append(out.Disconnected, awayToWire(g.Key.Group, l.away(view, g.Key))...)
	}
	out.Disconnected = out.Disconnected[:min(len(out.Disconnected), maxAway)]
	if len(out.Groups) == 0 {
		return nil
	}
	return out
}

// about is the oldest version, and run, that slots of a job want here; -1 when
// none wants any. A slot that is done stays in the version that it was done in.
func about(view *state.View, k state.JobKey) (version, run int64) {
	open, done, run := int64(-1), int64(-1), int64(-1)
	for g := range view.JobGroups(k) {
		for _, s := range g.Slots {
			if s.Desired != state.Run {
				continue
			}
			if run < 0 || s.Run < run {
				run = s.Run
			}
			switch {
			case s.State == state.SlotDone:
				done = max(done, s.JobVersion)
			case open < 0 || s.JobVersion < open:
				open = s.JobVersion
			}
		}
	}
	if open < 0 {
		open = done
	}
	return open, run
}

// awaitingChecks counts the instances that are up and wait for a check, and says
// of one what it waits for.
func awaitingChecks(view *state.View, g *state.GroupView) []*nusav1.CountedReason {
	if g.Counts.Starting == 0 {
		return nil
	}
	out := &nusav1.CountedReason{Reason: nusav1.Reason_REASON_NOT_HEALTHY_YET, What: "instance"}
	for a := range view.GroupAllocs(g.Key) {
		if a.Live() && !a.Disconnected && a.Desired == state.Run && a.Reason == state.ReasonNotHealthyYet {
			out.Count++
			out.Message = cmp.Or(out.Message, a.Message)
		}
	}
	if out.Count == 0 {
		return nil
	}
	return []*nusav1.CountedReason{out}
}

// reasons are why instances of a group are pending, are still starting or have
// failed.
func (l *leader) reasons(view *state.View, g *state.GroupView) []*nusav1.CountedReason {
	out := append(awayReasons(l.away(view, g.Key), time.Now()), wire.CountedReasonsToProto(l.sched.pending(g.Key))...)
	out = append(out, awaitingChecks(view, g)...)
	again := slices.IndexFunc(out, func(c *nusav1.CountedReason) bool { return c.GetReason() == nusav1.Reason_REASON_BACKOFF })
	if again >= 0 {
		out[again].Message = ""
	}
	if again < 0 && g.Counts.Failed == 0 {
		return out
	}
	failed := map[state.Reason]*nusav1.CountedReason{}
	var last *state.Instance // of those that are tried again, the one due last
	for i := range view.Instances(g.Key) {
		if !i.Exhausted {
			if i.NotBeforeUnixNano > 0 && i.Reason != "" && (last == nil || i.NotBeforeUnixNano > last.NotBeforeUnixNano) {
				last = i
			}
			continue
		}
		if c := failed[i.Reason]; c != nil {
			c.Count++
			continue
		}
		failed[i.Reason] = &nusav1.CountedReason{Reason: wire.ReasonToProto(i.Reason), Count: 1, Message: i.Message, What: "instance"}
	}
	if again >= 0 && last != nil {
		out[again].Message = "last failure: " + cmp.Or(last.Message, reason.Text(wire.ReasonToProto(last.Reason)))
	}
	for _, r := range slices.Sorted(maps.Keys(failed)) {
		out = append(out, failed[r])
	}
	return out
}

// sendLatency sends the edges that changed noticeably: at once when one was
// measured first, else every few seconds.
func (ss *upSession) sendLatency(now time.Time) (time.Time, error) {
	if due := ss.latencyAt.Add(latencyEvery); now.Before(due) {
		ss.mu.Lock()
		news := ss.latency
		ss.mu.Unlock()
		if !news {
			return due, nil
		}
		if soon := ss.latencyAt.Add(coalesce); now.Before(soon) {
			return soon, nil
		}
	}
	ss.take(&ss.latency)
	first := ss.latencyAt.IsZero()
	ss.latencyAt = now
	row := &nusav1.LatencyRow{Full: first}
	for _, e := range ss.u.l.prober.Edges() {
		was, sent := ss.edges[e.To]
		if e.State == topology.Unknown || sent && !noticeable(was.edge, e) && now.Sub(was.at) < refreshEdge {
			continue
		}
		ss.edges[e.To] = sentEdge{e, now}
		row.Edges = append(row.Edges, topo.EdgeToProto(e))
	}
	if len(row.Edges) == 0 && !first {
		return now.Add(latencyEvery), nil
	}
	row.Coordinate = topo.CoordinateToProto(ss.u.l.prober.Coordinate())
	return now.Add(latencyEvery), ss.stream.Send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Latency{Latency: row}})
}

// noticeable says whether an edge changed enough to be sent: its state, whether
// the other end is heard, a tenth and a millisecond of a percentile, or a point
// of loss.
func noticeable(was, is topology.Edge) bool {
	moved := func(a, b time.Duration) bool {
		d := (a - b).Abs()
		return d > time.Millisecond && d > a/10
	}
	return was.State != is.State || was.ReverseReachable != is.ReverseReachable || was.Source != is.Source || was.Method != is.Method ||
		moved(was.P50, is.P50) || moved(was.P90, is.P90) || moved(was.P99, is.P99) ||
		max(was.Loss-is.Loss, is.Loss-was.Loss) > 0.01
}
