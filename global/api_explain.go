package global

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Plan implements nusav1.JobsServer: the placer's own decision over the
// present snapshot with the job as it would be, thrown away afterwards.
func (j *jobsAPI) Plan(ctx context.Context, req *nusav1.PlanRequest) (*nusav1.PlanResponse, error) {
	a, err := j.s.current()
	if err != nil {
		return nil, err
	}
	spec := req.GetSpec()
	if err := a.checkSpec(spec); err != nil {
		return nil, apiError(err)
	}
	k := KeyOf(spec)
	out := &nusav1.PlanResponse{Unplaced: map[string]int32{}, Warnings: job.Warnings(spec)}
	snapshot, slots, err := a.dryRun(k, spec, out)
	if err != nil {
		return nil, apiError(err)
	}
	plan, asked := a.planAsking(ctx, k, spec, snapshot)
	out.Slots = slotsAfter(slots, plan, k)
	waits := stagesOf(plan)[k]
	for _, s := range out.Slots {
		if why := waits[s.GetRegion()]; why != "" && s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_RUN && s.GetJobVersion() < snapshot.Jobs[0].Version {
			s.Reason, s.Message = nusav1.Reason_REASON_UNSPECIFIED, why
		}
	}
	out.Explanation = &nusav1.Explanation{Age: durationpb.New(0)}
	for _, g := range plan.Groups {
		if g.Namespace != k.Namespace || g.Job != k.Name {
			continue
		}
		e := groupToProto(g)
		for _, r := range e.GetRegions() {
			addStage(r, waits)
		}
		if g.Unplaced > 0 {
			out.Unplaced[g.Group] = int32(g.Unplaced)
			e.Remedy = asked.remedy(g)
		}
		out.Explanation.Groups = append(out.Explanation.Groups, e)
	}
	return out, nil
}

// dryRun is the snapshot with a job as a submit would leave it, and its slots
// then; out gets the difference to the stored job.
func (a *active) dryRun(k JobKey, spec *nusav1.JobSpec, out *nusav1.PlanResponse) (place.Snapshot, []region.Slot, error) {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		return place.Snapshot{}, nil, fmt.Errorf("encode the job: %w", err)
	}
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	old, rev := a.st.JobRecord(k)
	out.Revision = rev
	if old.GetJob().GetStopped() {
		out.Diff = append(out.Diff, &nusav1.DiffLine{Field: "stopped", Old: "true"})
	}
	out.Diff = append(out.Diff, job.Diff(old.GetJob().GetSpec(), spec)...)
	t := NewTx(a.st) // thrown away
	resp, err := t.Submit(k, &nusav1.SubmitRequest{Spec: spec}, encoded)
	if err != nil {
		return place.Snapshot{}, nil, err
	}
	out.Warnings = append(resp.GetWarnings(), out.Warnings...)
	if resp.GetChanged() {
		rev = a.st.Revision + 1
	}
	rec, _ := t.Job(k)
	dry, slots := PlaceJob(rec, rev), t.Slots(k, "")
	SortSlots(slots)
	dry.Slots = slots
	if j := a.st.Jobs[k]; j != nil {
		dry.Summaries = j.Reported(rec)
	}
	return a.st.explainSnapshot(k, dry), slots, nil
}

// explainSnapshot is the present snapshot with one job, which is explained in
// full, and the jobs whose slots no report charges for yet. mu is held.
func (st *State) explainSnapshot(k JobKey, j place.Job) place.Snapshot {
	j.Explain = true
	out := st.snapshotRegions()
	out.Jobs, out.Terse = []place.Job{j}, true
	out.Origins = st.Serving(out.Jobs)
	for other := range st.Recent {
		if o := st.Jobs[other]; other != k && o != nil && o.Record != nil && st.Uncharged(o) {
			out.Jobs = append(out.Jobs, o.ForPlacer())
		}
	}
	return out
}

// slotsAfter are the slots of a job as a plan would leave them.
func slotsAfter(slots []region.Slot, plan place.Plan, k JobKey) []*nusav1.Slot {
	byKey := map[string]region.Slot{}
	for _, s := range slots {
		byKey[s.Key()] = s
	}
	for _, act := range plan.Actions {
		if act.Namespace != k.Namespace || act.Job != k.Name {
			continue
		}
		for _, c := range act.Changes() {
			if c.Delete {
				delete(byKey, c.Slot.Key())
			} else {
				byKey[c.Slot.Key()] = c.Slot
			}
		}
	}
	after := make([]region.Slot, 0, len(byKey))
	for _, s := range byKey {
		after = append(after, s)
	}
	SortSlots(after)
	out := make([]*nusav1.Slot, len(after))
	for i, s := range after {
		out[i] = SlotToProto(s)
	}
	return out
}

// Explain implements nusav1.JobsServer: the latest decision about each group,
// or what would be decided now where that is no longer held.
func (j *jobsAPI) Explain(ctx context.Context, req *nusav1.ExplainRequest) (*nusav1.Explanation, error) {
	a, err := j.s.current()
	if err != nil {
		return nil, err
	}
	k, err := checkRef(req.GetJob())
	if err != nil {
		return nil, err
	}
	if client, err := j.passed(a, req.GetJob()); client != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return client.Explain(ctx, req)
	}
	out, err := a.explain(k, req.GetGroup())
	if err != nil {
		return nil, err
	}
	if req.GetRegion() == "" {
		a.addRemedies(ctx, k, out)
		return out, nil
	}
	conn, err := a.dial(req.GetRegion())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, regionDeadline)
	defer cancel()
	// A region to which nothing was ever offered knows the job by its spec.
	nodes, err := nusav1.NewJobsClient(conn).Explain(ctx, &nusav1.ExplainRequest{
		Job: req.GetJob(), Region: req.GetRegion(), Group: req.GetGroup(), Spec: a.specOf(k),
	})
	switch {
	case status.Code(err) == codes.NotFound:
		return out, nil // nothing of the job is there, and the region is of an older version
	case err != nil:
		return nil, err
	}
	for _, g := range out.Groups {
		i := slices.IndexFunc(nodes.GetGroups(), func(n *nusav1.GroupExplanation) bool { return n.GetGroup() == g.GetGroup() })
		if i >= 0 {
			g.Nodes, g.Remedy = nodes.GetGroups()[i].GetNodes(), nodes.GetGroups()[i].GetRemedy()
		}
	}
	return out, nil
}

// addRemedies asks the regions that lack room, as a dry run of the job does, what
// change would make one more instance fit, where some have no region.
func (a *active) addRemedies(ctx context.Context, k JobKey, out *nusav1.Explanation) {
	if !slices.ContainsFunc(out.GetGroups(), func(g *nusav1.GroupExplanation) bool { return g.GetUnplaced() > 0 }) {
		return
	}
	spec := a.specOf(k)
	a.st.mu.Lock()
	j := a.st.Jobs[k]
	if spec == nil || j == nil || j.Record == nil {
		a.st.mu.Unlock()
		return
	}
	snapshot := a.st.explainSnapshot(k, j.ForPlacer())
	a.st.mu.Unlock()
	plan, asked := a.planAsking(ctx, k, spec, snapshot)
	for _, g := range out.GetGroups() {
		for _, p := range plan.Groups {
			if g.GetUnplaced() > 0 && p.Group == g.GetGroup() && p.Namespace == k.Namespace && p.Job == k.Name {
				g.Remedy = asked.remedy(p)
			}
		}
	}
}

// specOf is a job's stored spec, nil if there is none: a region can explain its
// nodes by it though nothing of the job is there.
func (a *active) specOf(k JobKey) *nusav1.JobSpec {
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	if j := a.st.Jobs[k]; j != nil && j.Record != nil {
		return proto.CloneOf(j.Record.GetJob().GetSpec())
	}
	return nil
}

// asIfNew is what an explanation says of itself whose decision is not held any
// more.
const asIfNew = "the decision is no longer held: as if placed now, without its own instances"

func (a *active) explain(k JobKey, group string) (*nusav1.Explanation, error) {
	now := a.st.Clock()
	last, err := a.lastDecision(k, group)
	if err != nil {
		return nil, err
	}
	out := &nusav1.Explanation{}
	if len(last.snapshot.Jobs) > 0 {
		for _, g := range place.MakePlan(last.snapshot).Groups {
			if _, have := last.held[g.Group]; !have && g.Namespace == k.Namespace && g.Job == k.Name {
				last.held[g.Group] = Decision{GroupExplanation: g, At: now}
				out.Note = last.note
			}
		}
	}
	oldest := now
	for _, name := range sortedKeys(last.held) {
		if group != "" && name != group {
			continue
		}
		e := last.held[name]
		oldest = min(oldest, e.At)
		g := groupToProto(e.GroupExplanation)
		last.asItIs(g)
		g.Bounds, g.Near = last.bounds[name], last.fares(g)
		out.Groups = append(out.Groups, g)
	}
	out.Age = durationpb.New(now - oldest)
	return out, nil
}

// lastDecision is what is held about a job's groups, how the job is, and a
// snapshot to decide the rest anew (empty if nothing is missing).
type lastDecision struct {
	held     map[string]Decision
	status   *nusav1.JobStatus
	system   bool
	snapshot place.Snapshot
	note     string
	bounds   map[string][]*nusav1.NearBound
	job      place.Job
	stages   map[string]string   // see Job
	near     *place.BoundTracker // nil where the job asks for no nearness
}

func (a *active) lastDecision(k JobKey, group string) (lastDecision, error) {
	st := a.st
	st.mu.Lock()
	defer st.mu.Unlock()
	j := st.Jobs[k]
	if j == nil || j.Record == nil {
		return lastDecision{}, noJob(k)
	}
	if group != "" && j.Record.GetJob().GetSpec().GetGroups()[group] == nil {
		return lastDecision{}, invalid("group", "job "+k.String()+" has no group "+group)
	}
	out := lastDecision{held: map[string]Decision{}, status: j.Status(), system: j.Spec.Type == place.System, bounds: j.bounds(), job: j.Spec, stages: maps.Clone(j.RolloutWaits)}
	if HasNear(j.Spec) {
		out.near = place.NewBoundTracker(st.nearSnapshotOf(j.Spec))
	}
	for name, e := range j.Decisions {
		if e.Full {
			out.held[name] = e
		}
	}
	switch {
	case len(out.held) == len(j.Spec.Groups):
	case out.waits():
		job := j.ForPlacer()
		job.Disconnected = st.Disconnected(j)
		out.snapshot = st.explainSnapshot(k, job)
	default:
		out.snapshot, out.note = st.withoutOwn(j), asIfNew
	}
	return out, nil
}

// waits says that instances have no region, or are out of sight there: what
// stands in the way is wanted.
func (d *lastDecision) waits() bool {
	for _, g := range d.status.GetGroups() {
		if g.GetUnowned()+g.GetCounts().GetLost() > 0 {
			return true
		}
	}
	return false
}

// withoutOwn is a snapshot in which nothing of the job is placed: the room that
// its instances take is free again, where it is counted exactly. mu is held.
func (st *State) withoutOwn(j *Job) place.Snapshot {
	dry := j.Spec
	dry.Stopped = false
	out := st.explainSnapshot(j.Key, dry)
	for _, g := range j.Spec.Groups {
		for _, r := range out.Regions {
			c := j.Summaries[r.Name].GetGroups()[g.Name]
			if n, exact := r.Fits[g.Ask.Hash()]; exact {
				r.Fits[g.Ask.Hash()] = n + int(c.GetStarting()+c.GetRunning())
			}
		}
	}
	return out
}

// asItIs puts the present numbers into an explanation: who has how many may
// have changed since, and those of a system job are nodes, which only the
// regions know.
func (d *lastDecision) asItIs(g *nusav1.GroupExplanation) {
	s := d.status.GetGroups()[g.GetGroup()]
	if s == nil {
		return
	}
	g.Desired, g.Unplaced = s.GetDesired(), s.GetUnowned()
	if said := s.GetPending(); len(said) > 0 || g.Unplaced == 0 {
		g.Pending = said // also what regions say of the instances that they have
	}
	if d.status.GetState() == nusav1.JobState_JOB_STATE_STOPPED {
		g.Desired = 0
	}
	owned := map[string]int32{}
	for _, slot := range s.GetSlots() {
		if slot.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_RUN {
			owned[slot.GetRegion()] += slot.GetTo() - slot.GetFrom()
		}
	}
	if d.system {
		g.Unplaced = s.GetCounts().GetPending()
		for r := range owned {
			c := s.GetRegions()[r]
			owned[r] = counts.Live(c) - c.GetPending()
		}
	}
	for _, r := range g.GetRegions() {
		r.Taken = owned[r.GetRegion()]
		addStage(r, d.stages)
	}
}

// addStage says of a region that has instances why a new version waits there.
func addStage(r *nusav1.RegionVerdict, stages map[string]string) {
	if why := stages[r.GetRegion()]; why != "" && r.GetTaken() > 0 {
		r.Message = strings.TrimPrefix(r.GetMessage()+"; "+why, "; ")
	}
}

// groupToProto shows a decision; ages of inputs are those of its moment.
func groupToProto(g place.GroupExplanation) *nusav1.GroupExplanation {
	out := &nusav1.GroupExplanation{Group: g.Group, Desired: int32(g.Desired), Unplaced: int32(g.Unplaced), Pending: CountsToProto(g.Pending)}
	for _, v := range g.Regions {
		r := &nusav1.RegionVerdict{
			Region: v.Region, Taken: int32(v.Taken), Fits: int32(v.Fits),
			Reason: ReasonToProto(v.Reason), Message: v.Message, Score: v.Score,
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
