package uplink

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/accept"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// coalesce is how long changes wait for further changes, while there are many, so that
	// one message has them all. burst is how many messages are sent at once after a quiet
	// time. An instance causes about that many changes until it runs.
	coalesce = 100 * time.Millisecond
	burst    = 5
	// ackWait is how long an acknowledgement of orders waits for another message, so that one
	// write to the connection carries both. It is sent at once as long as the session has none,
	// because the region gets no lease before.
	ackWait = 200 * time.Millisecond
	// repeatAnswers is the pause after which all answers are sent again.
	repeatAnswers = 5 * time.Second
	// maxAnswers bounds the answers in one message. maxBatchItems and maxBatchBytes bound a
	// message of summaries.
	maxAnswers    = 256
	maxBatchItems = 512
	maxBatchBytes = 256 << 10
)

// sendAll sends everything that is due until ctx ends, a send fails, or the receiver has
// ended. If the receiver has ended, received is true and err is the receiver's error.
func (ss *session) sendAll(ctx context.Context, ended <-chan error) (err error, received bool) {
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
		ss.sent = false
		next := time.Now().Add(time.Hour)
		steps := []func(time.Time) (time.Time, error){
			ss.sendLease, ss.checkCluster, ss.sendServers, ss.sendAnswers, ss.sendSummaries, ss.sendReport, ss.sendFits, ss.sendLatency, ss.sendAuthAck, ss.sendAck,
		}
		if !ss.joined.Load() {
			steps = steps[:1] // the content of the welcome is not committed yet
		}
		for _, step := range steps {
			due, err := step(time.Now())
			if err != nil {
				if errors.Is(err, io.EOF) && ss.joined.Load() {
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

// The following functions are the steps of sendAll. Each returns the time when it is due
// next. The zero time means at the next change.

// send sends a message. Only the sender calls it.
func (ss *session) send(m *nusav1.RegionMessage) error {
	ss.sent = true
	return ss.stream.Send(m)
}

// sendAck acknowledges orders together with another message, or after ackWait.
func (ss *session) sendAck(now time.Time) (time.Time, error) {
	ss.mu.Lock()
	ack := ss.ack
	switch {
	case ack == nil:
	case ss.acked && !ss.sent && ss.ackAt.IsZero():
		ss.ackAt, ack = now.Add(ackWait), nil
	case ss.acked && !ss.sent && now.Before(ss.ackAt):
		ack = nil
	default:
		ss.ack, ss.ackAt = nil, time.Time{}
	}
	ss.mu.Unlock()
	if ack == nil {
		return ss.ackAt, nil
	}
	ss.acked = true
	return time.Time{}, ss.send(&nusav1.RegionMessage{
		AppliedIndex: ss.u.cfg.FSM.View().Index(), Kind: &nusav1.RegionMessage_OrdersAck{OrdersAck: ack},
	})
}

// sendAuthAck acknowledges who may do what.
func (ss *session) sendAuthAck(time.Time) (time.Time, error) {
	ss.mu.Lock()
	ack := ss.authAck
	ss.authAck = nil
	ss.mu.Unlock()
	if ack == nil {
		return time.Time{}, nil
	}
	return time.Time{}, ss.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_AuthAck{AuthAck: ack}})
}

func (ss *session) sendServers(time.Time) (time.Time, error) {
	if !ss.clear(&ss.serversDirty) {
		return time.Time{}, nil
	}
	return time.Time{}, ss.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Update{
		Update: &nusav1.RegionUpdate{Servers: ss.u.cfg.Servers()}}})
}

// sendAnswers sends the answers to slot orders that changed. Every repeatAnswers it sends
// all answers, because an answer is repeated until the order changes.
func (ss *session) sendAnswers(now time.Time) (time.Time, error) {
	repeat := now.Sub(ss.repeatedAt) >= repeatAnswers
	ss.mu.Lock()
	dirty := ss.answersDirty
	ss.mu.Unlock()
	if !dirty && !repeat {
		return ss.repeatedAt.Add(repeatAnswers), nil
	}
	if !repeat {
		if due, allowed := ss.answerPace.Take(now); !allowed {
			return due, nil
		}
	}
	ss.clear(&ss.answersDirty)
	if repeat {
		ss.repeatedAt = now
	}
	current := map[string]*nusav1.SlotAnswer{}
	var out []*nusav1.SlotAnswer
	view := ss.u.cfg.FSM.View()
	answers := accept.Answers(view)
	if ss.u.cfg.LogSuspect() {
		answers = accept.OfSuspectLog(answers)
	}
	for _, a := range answers {
		w := wire.SlotAnswerToProto(&a)
		w.Output = outputOf(view, &a)
		w.Attempts = attemptsOf(view, &a)
		key := state.SlotID(a.Namespace, a.Job, a.Group, a.From)
		current[key] = w
		if repeat || !proto.Equal(w, ss.sentAnswers[key]) {
			out = append(out, w)
		}
	}
	ss.sentAnswers = current
	for _, part := range messagesOf(out) {
		if err := ss.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Answers{Answers: &nusav1.SlotAnswers{Answers: part}}}); err != nil {
			return time.Time{}, err
		}
	}
	return ss.repeatedAt.Add(repeatAnswers), nil
}

// attemptsOf returns what the instances have used of their retry policy that an answer gives up.
func attemptsOf(view *state.View, a *state.Answer) []*nusav1.InstanceAttempts {
	g, ok := view.Group(state.GroupKey{Namespace: a.Namespace, Job: a.Job, Group: a.Group})
	if !ok || a.State != state.SlotReturned && a.State != state.SlotRevoked {
		return nil
	}
	for _, s := range g.Slots {
		if s.Generation == a.Generation && s.From <= a.From && a.To <= s.To {
			return wire.AttemptsToProto(view, s, a.From, a.To)
		}
	}
	return nil
}

// sendSummaries sends the changed summaries of jobs.
func (ss *session) sendSummaries(now time.Time) (time.Time, error) {
	all := &ss.u.summaries
	next, dirty := all.repeatDue(now)
	if dirty || all.fullSetDue(ss.cursor) {
		if due, allowed := ss.summaryPace.Take(now); !allowed {
			return due, nil
		}
	}
	ss.u.updateSummaries()
	for {
		b, more := all.nextBatch(ss.cursor)
		if !more {
			return next, nil
		}
		out := &nusav1.JobSummaries{Full: b.Full, Last: b.Last, Removed: b.Removed, Position: wire.PositionToProto(state.Position(b.Position))}
		for _, i := range b.Items {
			out.Summaries = append(out.Summaries, i.Value)
		}
		if err := ss.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Summaries{Summaries: out}}); err != nil {
			return time.Time{}, err
		}
	}
}

// sendRow sends changes of this region's row, for a global server that can read such
// changes.
func (ss *session) sendRow(now time.Time) (time.Time, error) {
	cfg := &ss.u.cfg
	row := ss.u.row.changes(now, cfg.Prober.Edges(), topo.CoordinateToProto(cfg.Prober.Coordinate()))
	if row == nil {
		return now.Add(latencyEvery), nil
	}
	return now.Add(latencyEvery), ss.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Row{Row: row}})
}

// sendLatency sends the edges that changed noticeably. It sends at once after a noticeable
// change, otherwise every latencyEvery.
func (ss *session) sendLatency(now time.Time) (time.Time, error) {
	if due := ss.latencyAt.Add(latencyEvery); now.Before(due) {
		ss.mu.Lock()
		dirty := ss.latencyDirty
		ss.mu.Unlock()
		if !dirty {
			return due, nil
		}
		if soon := ss.latencyAt.Add(coalesce); now.Before(soon) {
			return soon, nil
		}
	}
	ss.clear(&ss.latencyDirty)
	if ss.changesRow {
		ss.latencyAt = now
		return ss.sendRow(now)
	}
	first := ss.latencyAt.IsZero()
	ss.latencyAt = now
	row := &nusav1.LatencyRow{Full: first}
	for _, e := range ss.u.cfg.Prober.Edges() {
		was, sent := ss.sentEdges[e.To]
		if e.State == topology.Unknown || sent && !noticeable(was.edge, e) && now.Sub(was.at) < refreshEdge {
			continue
		}
		ss.sentEdges[e.To] = sentEdge{e, now}
		row.Edges = append(row.Edges, topo.EdgeToProto(e))
	}
	if len(row.Edges) == 0 && !first {
		return now.Add(latencyEvery), nil
	}
	row.Coordinate = topo.CoordinateToProto(ss.u.cfg.Prober.Coordinate())
	return now.Add(latencyEvery), ss.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Latency{Latency: row}})
}
