package placer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// asIfNew is the note of an explanation whose decision is no longer stored.
const asIfNew = "the decision is no longer stored: explained as if placed now, without the present instances of the job"

// asItIs is the note of an explanation whose decision does not describe the present job or instances.
const asItIs = "the job, its instances or regions have changed since the decision: explained as they are now"

// isStopped is the note of an explanation of a stopped job.
const isStopped = "the job is stopped: none of its instances is to run"

// maxNearResults bounds the near results in a group's explanation.
const maxNearResults = 4096

// Explain returns the latest decision about each group of a job, or about the named group. If a
// decision is no longer stored, Explain returns the decision that would be made now. It returns
// false if the job does not exist.
func Explain(st *state.State, k state.JobKey, group string) (*nusav1.Explanation, bool) {
	now := st.Clock()
	last, ok := readDecisions(st, k)
	if !ok {
		return nil, false
	}
	AddDestinations(st, k, last.status)
	held := heldShares(st, k)
	out := &nusav1.Explanation{}
	if len(last.snapshot.Jobs) > 0 {
		for _, g := range place.MakePlan(last.snapshot).Groups {
			if _, have := last.held[g.Group]; !have && g.Namespace == k.Namespace && g.Job == k.Name {
				last.held[g.Group] = state.Decision{GroupExplanation: g, At: now}
				out.Note = last.note
			}
		}
	}
	oldest, ofMove := now, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(last.held)) {
		if group != "" && name != group {
			continue
		}
		d := last.held[name]
		oldest, ofMove[name] = min(oldest, d.At), d.Moved
		g := groupToProto(d.GroupExplanation)
		last.update(g)
		g.Bounds, g.Near = last.bounds[name], last.nearResults(g)
		out.Groups = append(out.Groups, g)
	}
	out.Age = durationpb.New(now - oldest)
	stopped := ""
	if last.job.Stopped {
		stopped = isStopped
	}
	notes := append([]string{stopped, out.GetNote(), last.moved(out.GetGroups(), ofMove)}, held...)
	out.Note = strings.Join(slices.DeleteFunc(notes, func(s string) bool { return s == "" }), "; ")
	return out, true
}

// heldShares says which regions have a share of Group.Parallel and hold instances of the group by an override. The
// share stays theirs: a region that is cut off may clear the override, and more instances than `parallel` would
// then run at once.
func heldShares(st *state.State, k state.JobKey) (out []string) {
	st.Lock()
	defer st.Unlock()
	j := st.Jobs[k]
	if j == nil || j.Record == nil {
		return nil
	}
	for _, g := range j.Place().Groups {
		if g.Parallel == 0 {
			continue
		}
		shares := map[string]int{}
		for s := range j.Slots.All() {
			if s.Group == g.Name && s.Desired == region.DesiredRun {
				shares[s.Region] += s.Parallel
			}
		}
		for _, name := range slices.Sorted(maps.Keys(shares)) {
			if held := j.Summaries.Get(name).GetGroups()[g.Name].GetHeld(); held > 0 && shares[name] > 0 {
				out = append(out, fmt.Sprintf("%s keeps %d of the %d instances of group %s that may run at once, although an override holds %d there: it may clear the override while it is cut off",
					name, shares[name], g.Parallel, g.Name, held))
			}
		}
	}
	return out
}

// maxMoves bounds the moves that the note of an explanation names.
const maxMoves = 4

// moved says which slots of the groups a verdict has moved, and why each of them went to its
// region. It returns "" if no slot was moved. ofMove names the groups whose stored decision is
// about the move. The stored decisions about the other groups are older than the moves.
func (d *lastDecisions) moved(groups []*nusav1.GroupExplanation, ofMove map[string]bool) string {
	var moves []string
	older := false
	for _, g := range groups {
		for _, s := range d.status.GetGroups()[g.GetGroup()].GetSlots() {
			if s.GetHome() != "" && s.GetRegion() != "" && s.GetRegion() != s.GetHome() {
				older = older || !ofMove[g.GetGroup()]
				moves = append(moves, fmt.Sprintf("%s%s from %s to %s, because %s",
					g.GetGroup(), region.FormatRange(int(s.GetFrom()), int(s.GetTo())), s.GetHome(), s.GetRegion(), s.GetPlacedBecause()))
			}
		}
	}
	if len(moves) == 0 {
		return ""
	}
	text := "the table is the decision about the latest move; moved: "
	if older {
		text = "the table is the decision about the job; moved since: "
	}
	text += strings.Join(moves[:min(len(moves), maxMoves)], "; ")
	if more := len(moves) - maxMoves; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// AddRemedies adds a remedy to each group with unplaced instances: a change after which one more
// instance would fit. Like a dry run, it asks the regions that lack room.
func AddRemedies(ctx context.Context, st *state.State, k state.JobKey, out *nusav1.Explanation) {
	if !slices.ContainsFunc(out.GetGroups(), func(g *nusav1.GroupExplanation) bool { return g.GetUnplaced() > 0 }) {
		return
	}
	st.Lock()
	j := st.Jobs[k]
	if j == nil || j.Record == nil {
		st.Unlock()
		return
	}
	spec := j.Record.Spec()
	snapshot := explainSnapshot(st, j.ToPlace(st.Sight()))
	st.Unlock()
	plan, answers := planWithAnswers(ctx, st, k, spec, snapshot)
	for _, g := range out.GetGroups() {
		for _, p := range plan.Groups {
			if g.GetUnplaced() > 0 && p.Group == g.GetGroup() && p.Namespace == k.Namespace && p.Job == k.Name {
				g.Remedy = answers.remedy(p)
			}
		}
	}
}

// lastDecisions holds the stored decisions about a job's groups, the present job, and a snapshot
// for the groups without a stored decision (empty if there are none).
type lastDecisions struct {
	held     map[string]state.Decision
	status   *nusav1.JobStatus
	job      place.Job
	snapshot place.Snapshot
	note     string
	bounds   map[string][]*nusav1.NearBound
	waits    map[string]string   // Job.RolloutWaits
	near     *place.BoundTracker // nil for a job without near rules
	// cutOff says, by region, how long a region that is cut off has been silent.
	cutOff map[string]time.Duration
}

func readDecisions(st *state.State, k state.JobKey) (lastDecisions, bool) {
	st.Lock()
	defer st.Unlock()
	j := st.Jobs[k]
	if j == nil || j.Record == nil {
		return lastDecisions{}, false
	}
	out := lastDecisions{held: map[string]state.Decision{}, status: j.Status(st.Sight()), bounds: bounds(j), job: j.Alone(), waits: maps.Clone(j.Notes().RolloutWaits), cutOff: map[string]time.Duration{}}
	if state.HasNear(j.Place()) {
		out.near = place.NewBoundTracker(nearSnapshot(st, st.TopologyView(), nearRegions(st), j.Alone()))
	}
	see := st.Sight()
	for name := range st.Regions {
		if silent, cut := see.CutOff(name); cut {
			out.cutOff[name] = silent
		}
	}
	outdated := false
	for _, d := range j.Decisions {
		switch {
		case d.Full && !j.Record.Stopped() && isOutdated(st, j, d):
			outdated = true
		case d.Former: // of a stopped job
		case d.Full:
			out.held[d.Group] = d
		}
	}
	switch {
	case len(out.held) == len(j.Place().Groups):
	case outdated, out.unsatisfied():
		if outdated {
			out.note = asItIs
		}
		job := j.ToPlace(st.Sight())
		job.Disconnected = st.DisconnectedOf(j)
		out.snapshot = explainSnapshot(st, job)
	default:
		out.snapshot, out.note = snapshotWithout(st, j), asIfNew
	}
	return out, true
}

// isOutdated reports whether a decision is about other rules than those of the present version, or whether
// its regions have other instances now, or were drained or cordoned since, or no longer are. The lock is held.
func isOutdated(st *state.State, j *state.Job, d state.Decision) bool {
	if d.Former {
		return true
	}
	owned := map[string]int{}
	for s := range j.Slots.All() {
		if s.Group == d.Group && s.Desired == region.DesiredRun {
			owned[s.Region] += s.Count()
		}
	}
	for _, v := range d.Regions {
		r := st.Regions[v.Region]
		switch {
		case r == nil || j.Place().Type != place.System && v.Taken != owned[v.Region]:
			return true
		case r.Record.GetLost() != nil || r.Session == nil: // the verdict gets that reason, see update
		case v.Reason == place.ReasonNotAllowed:
		case v.Reason == place.ReasonLost, v.Reason == place.ReasonDisconnected:
			return true
		case (v.Reason == place.ReasonCordoned) != r.Record.GetCordoned(), (v.Reason == place.ReasonDraining) != (r.Record.GetDraining() && !r.Record.GetCordoned()):
			return true
		}
	}
	return false
}

// unsatisfied reports whether instances have no region, or are lost in their region. Then the
// caller needs to know the obstacle.
func (d *lastDecisions) unsatisfied() bool {
	for _, g := range d.status.GetGroups() {
		if g.GetUnowned()+g.GetCounts().GetLost() > 0 {
			return true
		}
	}
	return false
}

// snapshotWithout returns a snapshot in which no instance of the job is placed. The room of its
// instances counts as free in regions that count the ask exactly. The lock is held.
func snapshotWithout(st *state.State, j *state.Job) place.Snapshot {
	dry := j.Alone()
	dry.Stopped = false
	out := explainSnapshot(st, dry)
	for i := range out.Regions {
		r := copyRegion(&out, i)
		r.Charged, r.Fits = st.Regions[r.Name].Without(j), maps.Clone(r.Fits)
		for _, g := range j.Place().Groups {
			c := j.Summaries.Get(r.Name).GetGroups()[g.Name]
			if n, exact := r.Fits[g.AskHash]; exact {
				r.Fits[g.AskHash] = n + int(c.GetStarting()+c.GetRunning())
			}
		}
	}
	return out
}

// update puts the present numbers into an explanation. The instances of each region may have
// changed since the decision. The instances of a system job are nodes, which only the regions know.
func (d *lastDecisions) update(g *nusav1.GroupExplanation) {
	s := d.status.GetGroups()[g.GetGroup()]
	if s == nil {
		return
	}
	g.Desired, g.Unplaced = s.GetDesired(), s.GetUnowned()
	if pending := s.GetPending(); len(pending) > 0 || g.Unplaced == 0 {
		g.Pending = pending // these include the regions' reasons about instances that they own
	}
	g.Pending = append(g.Pending, unknownReasons(s)...)
	if d.status.GetState() == nusav1.JobState_JOB_STATE_STOPPED {
		g.Desired = 0
	}
	owned := map[string]int32{}
	for _, slot := range s.GetSlots() {
		if slot.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_RUN {
			owned[slot.GetRegion()] += slot.GetTo() - slot.GetFrom()
		}
	}
	if d.job.Type == place.System {
		g.Unplaced = s.GetCounts().GetPending()
		for r := range owned {
			c := s.GetRegions()[r]
			owned[r] = counts.Live(c) - c.GetPending() + c.GetUnknown()
		}
	}
	for _, r := range g.GetRegions() {
		r.Taken = owned[r.GetRegion()]
		if silent, cut := d.cutOff[r.GetRegion()]; cut {
			r.Reason, r.Message = nusav1.Reason_REASON_REGION_DISCONNECTED, "cut off for "+jobstatus.Span(silent)
		}
		addRolloutWait(r, d.waits)
	}
}

// unknownReasons returns the unknown instances of a group as counted reasons.
func unknownReasons(s *nusav1.GroupStatus) []*nusav1.CountedReason {
	var out []*nusav1.CountedReason
	for _, u := range s.GetUnknown() {
		c := &nusav1.CountedReason{
			Reason: nusav1.Reason_REASON_REGION_DISCONNECTED, Count: u.GetCount(), What: "instance", Region: u.GetRegion(),
			Message: fmt.Sprintf("%s: %s", u.GetRegion(), u.GetMessage()),
		}
		if u.GetFormer() {
			c.Reason = nusav1.Reason_REASON_REGION_LOST
		} else {
			c.Message = fmt.Sprintf("%s: cut off for %s (last report: %s); %s", u.GetRegion(),
				jobstatus.Span(u.GetSilent().AsDuration()), jobstatus.LastText(u.GetLast()), u.GetMessage())
		}
		out = append(out, c)
	}
	return out
}

// nearResults returns how well each region in a group's explanation satisfies the group's near
// rules.
func (d *lastDecisions) nearResults(g *nusav1.GroupExplanation) []*nusav1.NearFare {
	i := slices.IndexFunc(d.job.Groups, func(p place.Group) bool { return p.Name == g.GetGroup() })
	if d.near == nil || i < 0 {
		return nil
	}
	var out []*nusav1.NearFare
	for _, r := range g.GetRegions() {
		for _, f := range d.near.NearResults(&d.job.Groups[i], r.GetRegion()) {
			out = append(out, nearResultToProto(r.GetRegion(), f))
			if len(out) == maxNearResults {
				return out
			}
		}
	}
	return out
}

func nearResultToProto(region string, f place.NearResult) *nusav1.NearFare {
	out := &nusav1.NearFare{
		Region: region, Bound: f.Near.String(), Required: f.Near.Required, Percentile: int32(max(f.Near.Percentile, 50)),
		Target: f.Target, Source: nusav1.RTTSource(f.Source), State: nusav1.EdgeState(f.State), Verdict: f.Verdict, Message: f.Why,
	}
	if f.Near.MaxRTT > 0 {
		out.MaxRtt = durationpb.New(f.Near.MaxRTT)
	}
	if f.Known() {
		out.Rtt, out.Error = durationpb.New(f.RTT), f.Error
	}
	if f.Source == topology.Measured {
		out.Age, out.Method = durationpb.New(f.Age), f.Method
	}
	return out
}

// bounds returns the breaches of a job in the form that Explain shows, by group. The lock is held.
func bounds(j *state.Job) map[string][]*nusav1.NearBound {
	out := map[string][]*nusav1.NearBound{}
	for _, b := range j.Notes().Breaches {
		left := topology.BreachSustain - b.Balance
		n := &nusav1.NearBound{
			Region: b.Region, Bound: b.Near, State: b.State.String(), Since: durationpb.New(b.Since),
			Latest: durationpb.New(b.Latest), Worst: durationpb.New(b.Worst), SustainedIn: durationpb.New(left),
		}
		switch {
		case !j.RunsAt(b.Group, b.Region):
			n.Message = "the region has no instance of the group any more, and gets none until the bound holds again"
		case !movesForLatency(j.Place(), b.Group):
			n.Message = "the instances stay: batch jobs, system jobs and colocated groups do not move for a bound"
		case b.State == topology.Broken:
			n.Message = fmt.Sprintf("the instances stay for now: if a better region has room, they move after the bound has been broken for another %s (time in which it holds is subtracted)", left.Round(time.Second))
		default:
			n.Message = "the next plan decides whether another region is better"
		}
		for _, m := range j.Notes().Moves {
			if b.State == topology.Sustained && m.Breach.Group == b.Group && m.Breach.Region == b.Region && m.Breach.Near == b.Near {
				n.Message = m.Why
			}
		}
		out[b.Group] = append(out[b.Group], n)
	}
	return out
}

// movesForLatency reports whether instances of a group may move for a bound that is broken.
func movesForLatency(j *place.Job, group string) bool {
	return j.Type == place.Service && j.SetOf(group) == ""
}

// addRolloutWait adds to the verdict about a region, if the region has instances, why a new version
// waits there.
func addRolloutWait(r *nusav1.RegionVerdict, waits map[string]string) {
	if why := waits[r.GetRegion()]; why != "" && r.GetTaken() > 0 {
		r.Message = strings.TrimPrefix(r.GetMessage()+"; "+why, "; ")
	}
}

// groupToProto returns a decision in the form of the API. It states the ages that the inputs had at
// the time of the decision. The number that fits includes the instances that the region has.
func groupToProto(g place.GroupExplanation) *nusav1.GroupExplanation {
	out := &nusav1.GroupExplanation{Group: g.Group, Desired: int32(g.Desired), Unplaced: int32(g.Unplaced), Pending: state.CountsToProto(g.Pending)}
	out.Divide, out.DivideWhy = nusav1.Divide(nusav1.Divide_value["DIVIDE_"+strings.ToUpper(string(g.Rule.Divide))]), g.Rule.Why
	for _, v := range g.Regions {
		r := &nusav1.RegionVerdict{
			Region: v.Region, Taken: int32(v.Taken), Fits: int32(v.Taken - v.New + v.Fits),
			Reason: state.ReasonToProto(v.Reason), Message: v.Message, Score: v.Score,
		}
		for _, t := range v.Terms {
			r.Terms = append(r.Terms, &nusav1.ScoreTerm{Name: t.Name, Value: t.Value, Detail: t.Detail})
		}
		for _, i := range v.Inputs {
			r.Inputs = append(r.Inputs, &nusav1.InputAge{Name: i.Name, Age: durationpb.New(i.Age)})
		}
		out.Regions = append(out.Regions, r)
	}
	return out
}
