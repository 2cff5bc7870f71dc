package uplink

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/compact"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/internal/sets"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// answersPerCommit bounds the answers of one request, so that their writes (three for an answer
	// that splits a slot) fit into one transaction.
	answersPerCommit = 32
	// outputsPerCommit bounds the outputs in them, in bytes.
	outputsPerCommit = 128 << 10
	// Bounds of a report and of a row of the latency matrix, in items.
	maxFits, maxBins, maxEdges = 256, 64, 4096
	maxDrivers                 = 64
	// maxReport and maxSummary bound, in bytes, what a checkpoint stores of a region. A transaction
	// of etcd has space for one of each, and for a full checkpoint record.
	maxReport  = 512 << 10
	maxSummary = 128 << 10
)

// handleLease handles a message that must not wait behind others. It returns false for any other
// message.
func (s *Server) handleLease(c *session, m *nusav1.RegionMessage) bool {
	switch k := m.GetKind().(type) {
	case *nusav1.RegionMessage_Lease:
		s.requestLease(c, k.Lease, m.GetAppliedIndex())
	case *nusav1.RegionMessage_OrdersAck:
		s.ackOrders(c, k.OrdersAck, m.GetAppliedIndex())
	default:
		return false
	}
	return true
}

// handle handles every message that handleLease does not handle. It queues answers for the
// committer and does not wait until they are stored. If the committer's queue is full, wait
// decides: handle waits, or it returns the answers that are not queued.
func (s *Server) handle(ctx context.Context, c *session, m *nusav1.RegionMessage, wait bool) (rest []*nusav1.SlotAnswer, err error) {
	if k, is := m.GetKind().(*nusav1.RegionMessage_Summaries); is {
		return nil, s.applySummaries(c, k.Summaries) // steps the session's state itself, so the lock is taken once
	}
	s.step(c, region.Received{Stream: c.shared.Number})
	switch k := m.GetKind().(type) {
	case *nusav1.RegionMessage_Answers:
		return s.queueAnswers(ctx, c, k.Answers.GetAnswers(), wait)
	case *nusav1.RegionMessage_Report:
		s.setReport(c, k.Report)
	case *nusav1.RegionMessage_Fits:
		s.addFits(c, k.Fits.GetFits())
	case *nusav1.RegionMessage_Latency:
		s.setRow(c, k.Latency)
	case *nusav1.RegionMessage_Row:
		return nil, s.changeRow(c, k.Row)
	case *nusav1.RegionMessage_Update:
		s.setServers(c, k.Update.GetServers())
	case *nusav1.RegionMessage_AuthAck:
		s.noteAuth(c, k.AuthAck)
	case *nusav1.RegionMessage_Forms:
		s.setForms(c, k.Forms)
	case *nusav1.RegionMessage_Goodbye:
		return nil, errGoodbye
	default:
		// A newer region may send messages that this server does not know.
	}
	return nil, nil
}

// noteAuth notes which roles, bindings and tokens a region has stored.
func (s *Server) noteAuth(c *session, ack *nusav1.AuthAck) {
	s.st.Lock()
	defer s.st.Unlock()
	if r := s.liveRegion(c); r != nil {
		r.Auth = state.AuthCopy{Hash: ack.GetHash(), Version: ack.GetVersion()}
		r.Stamp = s.st.Notify()
	}
}

// setForms stores which config the region's drivers accept. Jobs that wait may find a region now.
func (s *Server) setForms(c *session, m *nusav1.DriverForms) {
	s.st.Lock()
	defer s.st.Unlock()
	if r := s.liveRegion(c); r != nil && s.st.Forms.Set(c.region, m) {
		s.st.Openings++
		if len(s.st.Pending) > 0 {
			s.WakePlacer()
		}
	}
}

// liveRegion returns the region of a session, or nil if the session is not the region's live one.
// The lock is held.
func (s *Server) liveRegion(c *session) *state.Region {
	if r := s.st.Regions[c.region]; r != nil && r.Session == &c.shared && r.Life.Stream == c.shared.Number {
		return r
	}
	return nil
}

// queueAnswers queues a region's answers for the committer, in requests that each fit into one
// transaction. If the queue is full, wait decides: queueAnswers waits, or it returns the rest.
func (s *Server) queueAnswers(ctx context.Context, c *session, in []*nusav1.SlotAnswer, wait bool) (rest []*nusav1.SlotAnswer, err error) {
	now := time.Now()
	for len(in) > 0 {
		n := perCommit(in)
		b := &answerBatch{server: s, session: c, answers: in[:n:n], at: now}
		c.unhandled.Add(1)
		queued := s.Commit.TryBegin(b.prepare, b.ended)
		if !queued && wait {
			err = s.Commit.Begin(ctx, b.prepare, b.ended)
			queued = err == nil
		}
		if !queued {
			c.unhandled.Add(-1)
			return in, err
		}
		in = in[n:]
	}
	return nil, nil
}

// perCommit returns how many of the answers one request stores.
func perCommit(in []*nusav1.SlotAnswer) int {
	bytes := 0
	for i, a := range in[:min(len(in), answersPerCommit)] {
		if bytes += len(a.GetOutput()); i > 0 && bytes > outputsPerCommit {
			return i
		}
	}
	return min(len(in), answersPerCommit)
}

// answerBatch holds answers that are stored in one transaction.
type answerBatch struct {
	server  *Server
	session *session
	answers []*nusav1.SlotAnswer
	// at is when the answers arrived.
	at time.Time
	// changed: an answer changed a slot. refused are those of these answers that refuse a slot.
	changed bool
	refused []region.Answer
}

// prepare applies the answers. Answers that change nothing, because they are repeated or late, write
// nothing. The lock is held.
func (b *answerBatch) prepare(t *state.Tx) error {
	b.changed, b.refused = false, nil
	from := b.session.region
	for _, p := range b.answers {
		answer := state.AnswerFromProto(p)
		answer.Fence, answer.At = b.session.fence, b.at
		k := state.JobKey{Namespace: answer.Namespace, Name: answer.Job}
		t.Scratch = reachable(t.State, t.AppendSlots(t.Scratch[:0], k, answer.Group))
		out := region.ApplyAnswer(t.Scratch, from, answer)
		if err := t.ChangeSlots(out.Changes); err != nil {
			return err
		}
		if len(out.Changes) > 0 {
			if err := putAttempts(t, answer, p); err != nil {
				return err
			}
			if answer.State == region.Done {
				if err := state.PutOutput(t, k, p); err != nil {
					return err
				}
			}
			b.changed = true
			if answer.State == region.Rejected || answer.State == region.Returned {
				b.refused = append(b.refused, answer)
			}
			addAnswerEvents(t, from, &answer, out.Moved, whyEnded(t.State, from, answer))
			recordAnswer(t.State, from, answer, out, b.server.ReportInterval)
		}
	}
	return nil
}

// putAttempts stores what the instances of an answer have used of their retry policy, if their region gives them
// up. Tx.Scratch has the slots of the group before the answer.
func putAttempts(t *state.Tx, a region.Answer, p *nusav1.SlotAnswer) error {
	if a.State != region.Returned && a.State != region.Revoked {
		return nil
	}
	for i := range t.Scratch {
		if s := &t.Scratch[i]; s.Generation == a.Generation && a.From < s.To && s.From < a.To {
			return state.PutAttempts(t, s, a.From, a.To, p.GetAttempts())
		}
	}
	return nil
}

// ended ends the session if the answers are not stored.
func (b *answerBatch) ended(err error) {
	b.session.unhandled.Add(-1)
	if err != nil {
		b.session.cancel(state.RPCErrors.Err(fmt.Errorf("answers of region %s: %w", b.session.region, err)))
		return
	}
	b.server.logRefusals(b.session.region, b.refused)
	if b.changed {
		b.server.WakePlacer()
	}
}

// recordAnswer stores the facts in an answer that the placer needs. It runs in the answer's
// transaction, before the placer can give the indices to another region. The lock is held.
func recordAnswer(st *state.State, from string, answer region.Answer, out region.Outcome, interval time.Duration) {
	r, j := st.Regions[from], st.Jobs[state.JobKey{Namespace: answer.Namespace, Name: answer.Job}]
	if j == nil {
		return
	}
	if r != nil {
		r.RecordRefusal(j, answer, st.Clock(), interval)
	}
	if len(out.Released) > 0 {
		j.RecordReleased(from, answer, out.ReleasedVersion, st.Clock())
	}
}

// logRefusals logs answers that refuse a slot.
func (s *Server) logRefusals(from string, answers []region.Answer) {
	for _, answer := range answers {
		s.Log.Info("slot refused", "job", answer.Namespace+"/"+answer.Job, "slot", answer.Group+region.FormatRange(answer.From, answer.To),
			"region", from, "state", string(answer.State), "reason", answer.Reason)
	}
}

// addAnswerEvents adds the events of an answer that changes a slot to its transaction. moved are the ranges that have
// a new owner. why is why a former owner had to end what it ran.
func addAnswerEvents(t *state.Tx, from string, answer *region.Answer, moved []region.Moved, why string) {
	job := answer.Namespace + "/" + answer.Job
	text := &answerText{group: answer.Group, from: answer.From, to: answer.To, by: from}
	text.why = cmp.Or(reason.WithMessage(state.ReasonToProto(answer.Reason), answer.Message), why)
	t.EventText(from, "slot."+string(answer.State), job, text)
	for _, m := range moved {
		t.EventAt(m.Region, "slot.moved", job, "%s%s from %s to %s: it returns", answer.Group, region.FormatRange(m.From, m.To), from, m.Region)
	}
}

// answerText is the message of an event about an answer. It is formatted when the event is stored.
type answerText struct {
	group    string
	from, to int
	by, why  string
}

// String returns, for example, "web[0-5] by oslo: not enough memory".
func (a *answerText) String() string {
	out := a.group + region.FormatRange(a.from, a.to) + " by " + a.by
	if a.why != "" {
		out += ": " + a.why
	}
	return out
}

// setReport stores a region's report, cut to the bounds above.
func (s *Server) setReport(c *session, rep *nusav1.RegionReport) {
	if shape := rep.GetShape(); shape != nil {
		shape.Fits = cutFits(shape.Fits)
		shape.Bins = shape.Bins[:min(len(shape.Bins), maxBins)]
	}
	if len(rep.GetDrivers()) > maxDrivers {
		rep.Drivers, rep.DriversTruncated = rep.GetDrivers()[:maxDrivers], true
	}
	if size := proto.Size(rep); size > maxReport {
		s.Log.Warn("a report is ignored because it is too large", "region", c.region, "bytes", size, "max", maxReport)
		return
	}
	st := s.st
	st.Lock()
	defer st.Unlock()
	r := s.liveRegion(c)
	if r == nil {
		return
	}
	st.Events.AddLostNodes(r.Name, r.Report, rep)
	r.Load.Add(rep)
	st.TakeReport(r, rep)
	r.Reports++
	r.Touch()
	r.ReportDue = true
	r.Stamp = st.Notify()
	if len(st.Pending) > 0 {
		s.WakePlacer()
	}
}

// cutFits returns fit counts, cut to the bounds above.
func cutFits(fits []*nusav1.FitCount) []*nusav1.FitCount {
	fits = fits[:min(len(fits), maxFits)]
	for _, f := range fits {
		f.Message = strings.ToValidUTF8(f.Message[:min(len(f.Message), state.MaxMessage)], "")
	}
	return fits
}

// addFits adds fit counts for new asks to a region's latest report.
func (s *Server) addFits(c *session, fits []*nusav1.FitCount) {
	st := s.st
	st.Lock()
	defer st.Unlock()
	r := s.liveRegion(c)
	if r == nil || r.Report == nil || r.ReportStale {
		return
	}
	rep := proto.CloneOf(r.Report)
	if rep.Shape == nil {
		rep.Shape = &nusav1.RegionShape{}
	}
	fits = cutFits(fits)
	rep.Shape.Fits = slices.DeleteFunc(rep.Shape.Fits, func(old *nusav1.FitCount) bool {
		return slices.ContainsFunc(fits, func(f *nusav1.FitCount) bool { return f.GetAsk() == old.GetAsk() })
	})
	rep.Shape.Fits = append(rep.Shape.Fits, fits...)
	rep.Shape.Fits = rep.Shape.Fits[max(0, len(rep.Shape.Fits)-maxFits):]
	r.SetReport(rep, r.ReportAt, false)
	r.CountedAgain(fits)
	r.Stamp = st.Notify()
	if len(st.Pending) > 0 {
		s.WakePlacer()
	}
}

// setRow stores a region's row of the latency matrix.
func (s *Server) setRow(c *session, row *nusav1.LatencyRow) {
	if len(row.GetEdges()) > maxEdges {
		row.Edges = row.Edges[:maxEdges]
	}
	st := s.st
	st.Lock()
	defer st.Unlock()
	r := s.liveRegion(c)
	if r == nil {
		return
	}
	row.Edges = slices.DeleteFunc(row.Edges, func(e *nusav1.Edge) bool { return st.Regions[e.GetTo()] == nil || !topo.PlausibleEdge(e) })
	row.Coordinate = topo.PlausibleCoordinate(row.GetCoordinate())
	st.Latency.SetRow(c.region, row, st.Clock())
	if row.GetCoordinate() != nil {
		r.Coordinate = row.GetCoordinate()
	}
	st.Notify()
	if len(st.Pending) > 0 {
		s.WakePlacer()
	}
}

// changeRow applies changes of a region's row of the latency matrix.
func (s *Server) changeRow(c *session, row *nusav1.RowChanges) error {
	edges := <-s.rows
	defer func() { clear(edges); s.rows <- edges[:0] }()
	edges, err := sets.AppendRow(edges, c.region, row.GetEdges(), maxEdges)
	if err != nil {
		return &refusal{message: fmt.Sprintf("the region's row: %v", err)}
	}
	st := s.st
	st.Lock()
	defer st.Unlock()
	r := s.liveRegion(c)
	if r == nil {
		return nil
	}
	now := st.Clock()
	edges = slices.DeleteFunc(edges, func(e topology.Edge) bool { return e.To == c.region || st.Regions[e.To] == nil || !topo.Plausible(&e) })
	if age := row.GetConfirmed(); age != nil && age.AsDuration() >= 0 {
		st.Latency.Confirm(c.region, row.GetUnconfirmed(), age.AsDuration(), now)
	}
	st.Latency.SetEdges(c.region, edges, row.GetFull(), now)
	if at := topo.PlausibleCoordinate(row.GetCoordinate()); at != nil {
		r.Coordinate = at
		st.Latency.SetCoordinate(c.region, at)
	}
	r.Row = link.Position{Epoch: row.GetPosition().GetEpoch(), Sequence: row.GetPosition().GetSequence()}
	if len(edges) == 0 && !row.GetFull() && row.GetCoordinate() == nil {
		return nil
	}
	st.Notify()
	if len(st.Pending) > 0 {
		s.WakePlacer()
	}
	return nil
}

// setServers stores the list of a region's servers, which the region's peers probe.
func (s *Server) setServers(c *session, servers []*nusav1.RegionalServer) {
	if len(servers) > maxServers {
		servers = servers[:maxServers]
	}
	s.st.Lock()
	defer s.st.Unlock()
	if r := s.liveRegion(c); r != nil {
		r.Servers = servers
		r.Stamp = s.st.Notify()
		s.st.RegionsChanged()
	}
}

// summary is a summary of a region, as it arrived and as the state keeps it.
type summary struct {
	message *nusav1.JobSummary
	encoded []byte
}

// applySummaries applies a batch of the region's summaries and acknowledges it. It steps the session state, too.
func (s *Server) applySummaries(c *session, in *nusav1.JobSummaries) error {
	batch := link.Batch[summary]{
		Full: in.GetFull(), Last: in.GetLast(), Removed: in.GetRemoved(),
		Position: link.Position{Epoch: in.GetPosition().GetEpoch(), Sequence: in.GetPosition().GetSequence()},
	}
	batch.Items = make([]link.Item[summary], 0, len(in.GetSummaries()))
	for _, sum := range in.GetSummaries() {
		encoded := cutSummary(sum)
		if size := sizeOf(sum, encoded); size > maxSummary {
			return &refusal{message: fmt.Sprintf("the summary of job %.64q has %d bytes, at most %d are taken", sum.GetJob(), size, maxSummary)}
		}
		batch.Items = append(batch.Items, link.Item[summary]{Key: state.SummaryKey(c.region, sum), Value: summary{sum, encoded}})
	}
	st := s.st
	st.Lock()
	defer st.Unlock()
	if r := st.Regions[c.region]; r != nil {
		s.stepRegion(c, r, region.Received{Stream: c.shared.Number})
	}
	r := s.liveRegion(c)
	if r == nil {
		return nil
	}
	change, complete, err := c.inbox.Add(batch, maps.Keys(r.SummaryKeys))
	if err != nil {
		return &refusal{message: fmt.Sprintf("summaries: %v", err)}
	}
	if !complete {
		return nil
	}
	disconnected := false
	for _, item := range change.Upserts {
		state.NoteSummary(st, r, item.Key, item.Value.message)
		disconnected = st.ApplySummary(r, item.Value.message, item.Value.encoded) || disconnected
	}
	for _, key := range change.Removed {
		state.ForgetSummary(st, r, key)
	}
	r.SummariesAt, r.CheckpointDue = change.Position, true
	if disconnected || len(st.Ended)+len(st.Rollouts) > 0 {
		s.WakePlacer()
	}
	c.summarised = &nusav1.Position{Epoch: change.Position.Epoch, Sequence: change.Position.Sequence}
	c.wakeLater()
	return nil
}

// cutSummary cuts a summary to the bounds above, because it is stored and shown. It returns what compact.Encode returns
// for the summary.
func cutSummary(sum *nusav1.JobSummary) (encoded []byte) {
	for _, g := range sum.GetReasons() {
		g.Reasons = g.Reasons[:min(len(g.Reasons), state.MaxCounts)]
		for _, c := range g.GetReasons() {
			c.Message = state.CutMessage(c.GetMessage())
		}
	}
	sum.Disconnected = sum.Disconnected[:min(len(sum.Disconnected), state.MaxDisconnected)]
	for _, d := range sum.Disconnected {
		d.Node = state.CutMessage(d.GetNode())
	}
	encoded = compact.Encode(sum)
	if sizeOf(sum, encoded) > maxSummary && sum.Reasons != nil {
		sum.Reasons = nil
		encoded = compact.Encode(sum)
	}
	return encoded
}

// sizeOf returns about how many bytes a summary takes with the names of its job.
func sizeOf(sum *nusav1.JobSummary, encoded []byte) int {
	return len(sum.GetNamespace()) + len(sum.GetJob()) + len(encoded)
}
