package global

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// answersPerCommit keeps the writes of a request (three a split answer)
	// within one transaction.
	answersPerCommit = 32
	// Bounds of a report and a row.
	maxFits, maxBins, maxEdges = 256, 64, 4096
	maxDrivers                 = 64
	// maxReport and maxSummary bound in bytes what a checkpoint stores of a region:
	// a transaction of etcd holds one of each, and checkpointBytes.
	maxReport  = 512 << 10
	maxSummary = 128 << 10
)

// answers takes a region's answers: in one transaction each batch. Answers
// that change nothing (repeated, late) cost none.
func (a *active) answers(ctx context.Context, from string, in []*nusav1.SlotAnswer) error {
	for batch := range slices.Chunk(in, answersPerCommit) {
		var applied []region.Answer
		_, err := a.commit.Do(ctx, func(t *Tx) error {
			applied = applied[:0]
			for _, p := range batch {
				answer := AnswerFromProto(p)
				k := JobKey{answer.Namespace, answer.Job}
				out := region.ApplyAnswer(t.Slots(k, answer.Group), from, answer)
				if err := t.ChangeSlots(out.Changes); err != nil {
					return err
				}
				if len(out.Changes) > 0 {
					applied = append(applied, answer)
					// Before the indices are free for the placer.
					t.State.RecordRefusal(from, answer, a.cfg.ReportInterval)
					t.State.RecordReleased(from, answer)
				}
			}
			return nil
		})
		if err != nil {
			return apiError(fmt.Errorf("answers of region %s: %w", from, err))
		}
		a.answered(from, applied)
	}
	return nil
}

// answered tells of what was applied.
func (a *active) answered(from string, applied []region.Answer) {
	for _, answer := range applied {
		subject := answer.Namespace + "/" + answer.Job
		where := answer.Group + region.FormatRange(answer.From, answer.To)
		a.st.Events.Add("slot."+string(answer.State), subject, "%s by %s %s", where, from, reason.WithMessage(ReasonToProto(answer.Reason), answer.Message))
		if answer.State == region.Rejected || answer.State == region.Returned {
			a.log.Info("slot refused", "job", subject, "slot", where, "region", from, "state", string(answer.State), "reason", answer.Reason)
		}
	}
	if len(applied) > 0 {
		a.wakePlacer()
	}
}

// report takes a region's aggregate.
func (a *active) report(s *session, rep *nusav1.RegionReport) {
	if shape := rep.GetShape(); shape != nil {
		shape.Fits = shape.Fits[:min(len(shape.Fits), maxFits)]
		shape.Bins = shape.Bins[:min(len(shape.Bins), maxBins)]
		for _, f := range shape.Fits {
			f.Message = strings.ToValidUTF8(f.Message[:min(len(f.Message), MaxMessage)], "")
		}
	}
	if len(rep.GetDrivers()) > maxDrivers {
		rep.Drivers = nil
	}
	if size := proto.Size(rep); size > maxReport {
		a.log.Warn("a report is not taken: it is too large", "region", s.region, "bytes", size, "max", maxReport)
		return
	}
	st := a.st
	st.mu.Lock()
	defer st.mu.Unlock()
	r := st.Regions[s.region]
	if r == nil || r.Session != s {
		return
	}
	st.Events.AddLostNodes(r.Name, r.Report, rep)
	r.Load.Add(rep)
	r.Report, r.ReportAt, r.ReportStale = rep, st.Clock(), false
	r.Reports++
	r.CheckpointDue = true
	r.Stamp = st.Notify()
	if len(st.Pending) > 0 {
		a.wakePlacer()
	}
}

// latency takes a region's row.
func (a *active) latency(s *session, row *nusav1.LatencyRow) {
	if len(row.GetEdges()) > maxEdges {
		row.Edges = row.Edges[:maxEdges]
	}
	st := a.st
	st.mu.Lock()
	defer st.mu.Unlock()
	r := st.Regions[s.region]
	if r == nil || r.Session != s {
		return
	}
	row.Edges = slices.DeleteFunc(row.Edges, func(e *nusav1.Edge) bool { return st.Regions[e.GetTo()] == nil || !topo.PlausibleEdge(e) })
	st.latencyRow(s.region, row)
	st.Notify()
	if len(st.Pending) > 0 {
		a.wakePlacer()
	}
}

// serversChanged takes the region's servers; peers probe them.
func (a *active) serversChanged(s *session, servers []*nusav1.RegionalServer) {
	if len(servers) > maxServers {
		servers = servers[:maxServers]
	}
	st := a.st
	st.mu.Lock()
	defer st.mu.Unlock()
	if r := st.Regions[s.region]; r != nil && r.Session == s {
		r.Servers = servers
		r.Stamp = st.Notify()
		st.RegionsChanged()
	}
}

// summaryKey names a summary in its region's set, as regions do: by
// "namespace/job", and with "@region" for the region's own jobs.
func summaryKey(region string, s *nusav1.JobSummary) string {
	key := s.GetNamespace() + "/" + s.GetJob()
	if s.GetLocal() {
		key += "@" + region
	}
	return key
}

// summaries takes a batch of the region's summaries, and acknowledges it.
func (a *active) summaries(s *session, in *nusav1.JobSummaries) error {
	st := a.st
	st.mu.Lock()
	defer st.mu.Unlock()
	r := st.Regions[s.region]
	if r == nil || r.Session != s {
		return nil
	}
	batch := link.Batch[*nusav1.JobSummary]{
		Full: in.GetFull(), Last: in.GetLast(), Removed: in.GetRemoved(),
		Position: link.Position{Epoch: in.GetPosition().GetEpoch(), Sequence: in.GetPosition().GetSequence()},
	}
	for _, sum := range in.GetSummaries() {
		if size := cutSummary(sum); size > maxSummary {
			return &refusal{message: fmt.Sprintf("the summary of job %.64q has %d bytes, at most %d are taken", sum.GetJob(), size, maxSummary)}
		}
		batch.Items = append(batch.Items, link.Item[*nusav1.JobSummary]{Key: summaryKey(s.region, sum), Value: sum})
	}
	change, complete, err := s.inbox.Add(batch, maps.Keys(r.SummaryKeys))
	if err != nil {
		return &refusal{message: fmt.Sprintf("summaries: %v", err)}
	}
	if !complete {
		return nil
	}
	away := false
	for _, item := range change.Upserts {
		r.SummaryKeys[item.Key] = struct{}{}
		away = st.ApplySummary(r, item.Value) || away
	}
	for _, key := range change.Removed {
		delete(r.SummaryKeys, key)
		namespace, name, _ := strings.Cut(key, "/")
		if j := st.Jobs[JobKey{namespace, name}]; j != nil {
			delete(j.Summaries, s.region)
			j.Stamp = st.Notify()
		}
		delete(r.Disconnected, JobKey{namespace, name})
	}
	r.SummariesAt, r.CheckpointDue = change.Position, true
	if away || len(st.Ended)+len(st.Rollouts) > 0 {
		a.wakePlacer() // which stores how jobs ended, judges rollouts, and looks for room
	}
	s.post(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_SummariesAck{
		SummariesAck: &nusav1.Position{Epoch: change.Position.Epoch, Sequence: change.Position.Sequence},
	}})
	return nil
}

// cutSummary bounds what a region says of a job, which is stored and shown, and
// answers its size.
func cutSummary(sum *nusav1.JobSummary) int {
	for _, g := range sum.GetReasons() {
		g.Reasons = g.Reasons[:min(len(g.Reasons), MaxCounts)]
		for _, c := range g.GetReasons() {
			c.Message = CutMessage(c.GetMessage())
		}
	}
	sum.Disconnected = sum.Disconnected[:min(len(sum.Disconnected), MaxDisconnected)]
	for _, a := range sum.Disconnected {
		a.Node = CutMessage(a.GetNode())
	}
	if proto.Size(sum) > maxSummary {
		sum.Reasons = nil
	}
	return proto.Size(sum)
}

// ApplySummary takes one summary unless a newer one is known, and answers
// whether it says something new of what is away. mu is held.
func (st *State) ApplySummary(r *Region, sum *nusav1.JobSummary) (away bool) {
	k := JobKey{sum.GetNamespace(), sum.GetJob()}
	j := st.Jobs[k]
	if sum.GetLocal() || j == nil || j.Record == nil {
		return false
	}
	old := j.Summaries[r.Name]
	if old != nil && (old.GetIncarnation() > sum.GetIncarnation() ||
		old.GetIncarnation() == sum.GetIncarnation() && old.GetIndex() > sum.GetIndex()) {
		return false
	}
	j.Summaries[r.Name] = sum
	away = st.setDisconnected(r, k, sum)
	if !st.loading {
		st.Events.AddFailedInstances(r.Name, k.String(), old, sum)
	}
	j.Stamp = st.Notify()
	if j.Record.GetJob().GetSpec().GetType() == nusav1.JobType_JOB_TYPE_BATCH {
		st.Ended[k] = struct{}{}
	}
	if j.Revertible() || len(j.RolloutWaits) > 0 {
		st.Rollouts[k] = struct{}{}
	}
	return away
}

// next is the next message of the sets that the region is to have, nil when it
// has everything.
func (s *session) next() *nusav1.GlobalMessage {
	st := s.a.st
	st.mu.Lock()
	defer st.mu.Unlock()
	switch r := st.Regions[s.region]; {
	case !s.opened.Load() || r == nil || r.Session != s:
		return nil
	case len(s.out) > 0:
		// The welcome, and grants, come before the sets; send comes back.
		s.wake()
		return nil
	}
	if b, ok := s.cursor.NextWithin(ordersItems, ordersBytes, orderSize); ok {
		return ordersMessage(b)
	}
	switch {
	case s.peersDirty:
		s.peersDirty = false
		return st.peersMessage(s.region)
	case s.shapesDirty:
		s.shapesDirty = false
		return st.shapesMessage(s.a.subscribed)
	case s.originsDirty:
		s.originsDirty = false
		return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Origins{
			Origins: &nusav1.OriginTable{Records: st.origins.Records()},
		}}
	case s.columnDirty:
		s.columnDirty = false
		if m := s.columnMessage(); m != nil {
			return m
		}
	}
	m := s.compact
	s.compact = nil
	return m
}

func orderSize(i link.Item[*nusav1.SlotOrder]) int { return proto.Size(i.Value) + 8 }

func ordersMessage(b link.Batch[*nusav1.SlotOrder]) *nusav1.GlobalMessage {
	out := &nusav1.SlotOrders{
		Full: b.Full, Last: b.Last, Removed: b.Removed,
		Position: &nusav1.Position{Epoch: b.Position.Epoch, Sequence: b.Position.Sequence},
	}
	for _, i := range b.Items {
		out.Orders = append(out.Orders, i.Value)
	}
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Orders{Orders: out}}
}

// peersMessage is every region but one, with where to probe it. mu is held.
func (st *State) peersMessage(to string) *nusav1.GlobalMessage {
	out := &nusav1.PeerRegions{}
	for _, name := range st.RegionNames() {
		r := st.Regions[name]
		if name == to {
			continue
		}
		p := &nusav1.PeerRegion{
			Name: name, Location: r.Record.GetDefinition().GetLocation(), Labels: r.Record.GetDefinition().GetLabels(),
			Coordinate: r.Coordinate, ProbeDemand: st.ProbeDemand[to][name],
		}
		for _, srv := range r.Servers {
			if srv.GetProbeAddress() != "" {
				p.ProbeAddresses = append(p.ProbeAddresses, srv.GetProbeAddress())
			}
			if srv.GetAddress() != "" {
				p.GrpcAddresses = append(p.GrpcAddresses, srv.GetAddress())
			}
		}
		out.Regions = append(out.Regions, p)
	}
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Peers{Peers: out}}
}

// shapesMessage is the full list of asks. mu is held.
func (st *State) shapesMessage(hashes []uint64) *nusav1.GlobalMessage {
	out := &nusav1.ShapeSubscriptions{}
	for _, h := range hashes {
		if a := st.asks[h]; a != nil {
			out.Asks = append(out.Asks, a.sub)
		}
	}
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Shapes{Shapes: out}}
}
