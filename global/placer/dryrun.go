package placer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// DryRun returns the decision that the placer would make now about a job, after its submit. It
// changes nothing. The spec must be valid and have its defaults.
func DryRun(ctx context.Context, st *state.State, spec *nusav1.JobSpec) (*nusav1.PlanResponse, error) {
	k := state.KeyOf(spec)
	out := &nusav1.PlanResponse{Unplaced: map[string]int32{}, Warnings: job.Warnings(spec)}
	snapshot, slots, err := submitted(st, k, spec, out)
	if err != nil {
		return nil, err
	}
	plan, answers := planWithAnswers(ctx, st, k, spec, snapshot)
	out.Warnings = append(out.Warnings, awaitsReports(k, answers.byReports, plan)...)
	out.Slots = slotsAfter(slots, plan, k)
	out.Warnings = append(out.Warnings, brokenBounds(snapshot, out.Slots)...)
	waits := rolloutWaits(plan)[k]
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
			addRolloutWait(r, waits)
		}
		if g.Unplaced > 0 {
			out.Unplaced[g.Group] = int32(g.Unplaced)
			e.Remedy = answers.remedy(g)
		}
		out.Explanation.Groups = append(out.Explanation.Groups, e)
	}
	return out, nil
}

// maxBroken bounds the broken bounds that a plan or a submit names.
const maxBroken = 4

// brokenBounds says which instances of a planned job run in a region whose measured round trip breaks a required
// bound. slots are those after the plan.
func brokenBounds(planned place.Snapshot, slots []*nusav1.Slot) []string {
	j := &planned.Jobs[0]
	if !state.HasNear(j) {
		return nil
	}
	broken := slices.DeleteFunc(place.NewBoundTracker(planned).Step(j, 0), func(b place.Breach) bool {
		return !slices.ContainsFunc(slots, func(s *nusav1.Slot) bool {
			return s.GetGroup() == b.Group && s.GetRegion() == b.Region && s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_RUN && s.GetState() != nusav1.SlotState_SLOT_STATE_DONE
		})
	})
	return brokenTexts(broken)
}

// BrokenBounds says which instances of a job run in a region whose measured round trip breaks a required bound of
// the present version.
func BrokenBounds(st *state.State, k state.JobKey) []string {
	snapshot, has := boundsSnapshot(st, k)
	if !has {
		return nil
	}
	return brokenTexts(place.NewBoundTracker(snapshot).Step(&snapshot.Jobs[0], 0))
}

// boundsSnapshot returns the facts that the bounds of a job depend on, or false if the job has no near rule.
func boundsSnapshot(st *state.State, k state.JobKey) (place.Snapshot, bool) {
	st.Lock()
	defer st.Unlock()
	j := st.Jobs[k]
	if j == nil || j.Record == nil || !state.HasNear(j.Place()) {
		return place.Snapshot{}, false
	}
	job := j.Alone()
	job.Slots = j.SortedSlots()
	return nearSnapshot(st, st.TopologyView(), nearRegions(st), job), true
}

// brokenTexts returns warnings about broken bounds.
func brokenTexts(broken []place.Breach) (out []string) {
	for _, b := range broken[:min(len(broken), maxBroken)] {
		out = append(out, fmt.Sprintf("instances of %s are in %s, although the round trip of %s breaks %s: nusa job explain says whether they move",
			b.Group, b.Region, b.Latest.Round(time.Microsecond), b.Near))
	}
	if more := len(broken) - maxBroken; more > 0 {
		out = append(out, fmt.Sprintf("%d more bounds are broken where instances are", more))
	}
	return out
}

// awaitsReports says which instances have room by the answers that the dry run got from regions,
// but not by the regions' reports. A submit relies on the reports, which are older.
func awaitsReports(k state.JobKey, byReports, byAnswers place.Plan) (out []string) {
	unplaced := map[string]int{}
	for _, g := range byAnswers.Groups {
		if g.Namespace == k.Namespace && g.Job == k.Name {
			unplaced[g.Group] = g.Unplaced
		}
	}
	for _, g := range byReports.Groups {
		left, known := unplaced[g.Group]
		if !known || g.Namespace != k.Namespace || g.Job != k.Name || g.Unplaced <= left {
			continue
		}
		age := time.Duration(0)
		for _, v := range g.Regions {
			for _, in := range v.Inputs {
				if in.Name == "report" {
					age = max(age, in.Age)
				}
			}
		}
		instances := fmt.Sprintf("%d instances", g.Unplaced-left)
		if g.Unplaced-left == 1 {
			instances = "1 instance"
		}
		out = append(out, fmt.Sprintf("the reports of the regions are up to %s old: after a submit now, %s of %s would wait for the next reports",
			age.Round(100*time.Millisecond), instances, g.Group))
	}
	return out
}

// submitted returns a snapshot with a job as a submit would leave it, and the slots that the job
// would then have. It adds to out how the job differs from the stored one.
func submitted(st *state.State, k state.JobKey, spec *nusav1.JobSpec, out *nusav1.PlanResponse) (place.Snapshot, []region.Slot, error) {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		return place.Snapshot{}, nil, fmt.Errorf("encode the job: %w", err)
	}
	st.Lock()
	defer st.Unlock()
	t := state.NewDryTx(st)
	old, rev, err := state.Stored(t, k)
	if err != nil {
		return place.Snapshot{}, nil, err
	}
	out.Revision = rev
	if old.Stopped() {
		out.Diff = append(out.Diff, &nusav1.DiffLine{Field: "stopped", Old: "true"})
	}
	out.Diff = append(out.Diff, job.Diff(old.Spec(), spec)...)
	work := spec
	if job.IsTemplate(spec) { // plan a run
		work = proto.CloneOf(spec)
		work.Schedule, work.Parameterized = nil, nil
	}
	resp, err := t.SubmitJob(k, state.Submission{Spec: state.NewSpec(work), Encoded: encoded})
	if err != nil {
		return place.Snapshot{}, nil, err
	}
	out.Warnings = append(resp.GetWarnings(), out.Warnings...)
	if j := st.Jobs[k]; j != nil && j.Record != nil {
		if !j.Record.Stopped() {
			out.Changes = workChanges(old.Spec(), spec, t.Slots(k, ""))
			out.Warnings = append(out.Warnings, job.Rebound(old.Spec(), spec, false)...)
		}
		out.Warnings = append(out.Warnings, unknownWarnings(j.Status(st.Sight()))...)
	}
	if resp.GetChanged() {
		rev = st.Revision + 1
	}
	rec, _ := t.Job(k)
	dry, slots := state.Planned(t, k, rec, rev), t.Slots(k, "")
	state.SortSlots(slots)
	dry.Slots = slots
	if j := st.Jobs[k]; j != nil {
		dry.Summaries = j.Reported(rec)
	}
	return explainSnapshot(st, dry), slots, nil
}

// ifPossible is the condition under which an instance gets other resources while it runs. Only the region
// knows whether it is met.
const ifPossible = "where the node has the room and its driver can do it; other instances are replaced"

// workChanges says what a version does to the instances of the slots. A dry run of a job's first version, or
// of one that changes no work, has nothing to say.
func workChanges(before, after *nusav1.JobSpec, slots []region.Slot) (out []*nusav1.GroupChange) {
	state.SortSlots(slots)
	for _, c := range job.WorkChanges(before, after, false) {
		change := &nusav1.GroupChange{Group: c.Group, InPlace: c.InPlace, Message: ifPossible}
		if !c.InPlace {
			change.Message = "more than resources changes"
		}
		var parts []string
		end := -1
		for _, s := range slots {
			most := min(s.To, int(before.GetGroups()[c.Group].GetCount()))
			switch {
			case s.Group != c.Group || s.Desired != region.DesiredRun || s.From >= most || after.GetType() == nusav1.JobType_JOB_TYPE_SYSTEM:
				continue
			case s.From == end:
				from, _, _ := strings.Cut(parts[len(parts)-1], "-")
				parts[len(parts)-1] = from + "-" + strconv.Itoa(most-1)
			case s.From == most-1:
				parts = append(parts, strconv.Itoa(s.From))
			default:
				parts = append(parts, fmt.Sprintf("%d-%d", s.From, most-1))
			}
			end = most
		}
		change.Instances = strings.Join(parts, ",")
		if change.Instances != "" || after.GetType() == nusav1.JobType_JOB_TYPE_SYSTEM {
			out = append(out, change)
		}
	}
	return out
}

// unknownWarnings says which instances of a job a new version does not reach now.
func unknownWarnings(s *nusav1.JobStatus) (out []string) {
	var all [][]*nusav1.UnknownInstances
	for _, g := range s.GetGroups() {
		all = append(all, g.GetUnknown())
	}
	if text := jobstatus.UnknownText(jobstatus.Cuts(false, all...)); text != "" {
		out = append(out, text+"; a change reaches them when the region returns, or when they have moved")
	}
	if text := jobstatus.UnknownText(jobstatus.Cuts(true, all...)); text != "" {
		out = append(out, text)
	}
	return out
}

// slotsAfter returns the slots of a job as a plan would leave them.
func slotsAfter(slots []region.Slot, plan place.Plan, k state.JobKey) []*nusav1.Slot {
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
	state.SortSlots(after)
	out := make([]*nusav1.Slot, len(after))
	for i, s := range after {
		out[i] = state.SlotToProto(s)
	}
	return out
}

const (
	// askRounds bounds how often a dry run asks regions. Other regions may become candidates
	// because of the answers.
	askRounds = 3
	// askRegions bounds the regions that one round asks.
	askRegions = 16
	// askDeadline is the time for one round. If a region does not answer in time, its report is
	// used.
	askDeadline = 2 * time.Second
)

// regionAnswers holds the answers of regions to a dry run.
type regionAnswers struct {
	st       *state.State
	job      state.JobKey
	spec     *nusav1.JobSpec
	snapshot place.Snapshot
	hashes   map[string]uint64 // hashes of the asks, by name of the group
	// byReports is the plan before any region has answered.
	byReports place.Plan
	// byRegion has a nil entry for a region that was asked and did not answer.
	byRegion map[string]*nusav1.Explanation
}

// planWithAnswers makes the plan of a dry run. A report has an exact count only for asks of stored
// jobs. It gives the reason why nothing fits, but no remedy. So planWithAnswers asks the regions
// that matter for both.
func planWithAnswers(ctx context.Context, st *state.State, k state.JobKey, spec *nusav1.JobSpec, snapshot place.Snapshot) (place.Plan, *regionAnswers) {
	a := &regionAnswers{st: st, job: k, spec: spec, snapshot: snapshot, hashes: map[string]uint64{}, byRegion: map[string]*nusav1.Explanation{}}
	for _, j := range snapshot.Jobs {
		if j.Namespace == k.Namespace && j.Name == k.Name && j.Type != place.System {
			for _, g := range j.Groups {
				a.hashes[g.Name] = g.AskHash
			}
		}
	}
	plan := place.MakePlan(snapshot)
	a.byReports = plan
	for range askRounds {
		regions := a.unsure(plan)
		if len(regions) == 0 {
			break
		}
		a.ask(ctx, regions)
		plan = place.MakePlan(snapshot)
	}
	return plan, a
}

// unsure returns the regions that would get instances because of an estimate, and the regions that
// would get none because they lack room.
func (a *regionAnswers) unsure(plan place.Plan) (out []string) {
	for _, g := range plan.Groups {
		hash, own := a.hashes[g.Group]
		if !own || g.Namespace != a.job.Namespace || g.Job != a.job.Name {
			continue
		}
		for _, v := range g.Regions {
			i := slices.IndexFunc(a.snapshot.Regions, func(r *place.Region) bool { return r.Name == v.Region })
			_, asked := a.byRegion[v.Region]
			if i < 0 || asked || len(out) == askRegions || slices.Contains(out, v.Region) {
				continue
			}
			_, exact := a.snapshot.Regions[i].Fits[hash]
			if v.New > 0 && !exact || v.Reason == place.ReasonNoCapacity {
				out = append(out, v.Region)
			}
		}
	}
	return out
}

// ask asks regions, and puts their answers into the snapshot.
func (a *regionAnswers) ask(ctx context.Context, regions []string) {
	ctx, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	answers := make([]*nusav1.Explanation, len(regions))
	var all sync.WaitGroup
	for i, name := range regions {
		conn := a.conn(name)
		if conn == nil {
			continue
		}
		all.Go(func() {
			answers[i], _ = nusav1.NewJobsClient(conn).Explain(ctx, &nusav1.ExplainRequest{
				Job: &nusav1.JobRef{Namespace: a.job.Namespace, Name: a.job.Name}, Region: name, Spec: a.spec, AsGiven: true,
			}) // without an answer the region's report is used
		})
	}
	all.Wait()
	for i, name := range regions {
		a.byRegion[name] = answers[i]
		at := slices.IndexFunc(a.snapshot.Regions, func(r *place.Region) bool { return r.Name == name })
		a.takeAnswer(copyRegion(&a.snapshot, at), answers[i])
	}
}

// conn returns the tunnel to a region, or nil if the region is not connected.
func (a *regionAnswers) conn(name string) *grpc.ClientConn {
	a.st.Lock()
	r := a.st.Regions[name]
	var session *state.Session
	if r != nil {
		session = r.Session
	}
	a.st.Unlock()
	if session == nil {
		return nil
	}
	conn, err := session.Conn()
	if err != nil {
		return nil // the session has ended
	}
	return conn
}

// takeAnswer replaces the estimates about a region in the snapshot by the region's answer.
func (a *regionAnswers) takeAnswer(r *place.Region, answer *nusav1.Explanation) {
	for _, g := range answer.GetGroups() {
		hash, known := a.hashes[g.GetGroup()]
		if !known || !answersSpec(g) || r.Fits == nil {
			continue
		}
		v := g.GetRegions()[0]
		r.Fits, r.NoFitReasons = maps.Clone(r.Fits), maps.Clone(r.NoFitReasons) // the state owns the original maps
		r.Fits[hash] = int(v.GetFits())
		if v.GetFits() == 0 && v.GetReason() != nusav1.Reason_REASON_UNSPECIFIED {
			if r.NoFitReasons == nil {
				r.NoFitReasons = map[uint64]place.Returned{}
			}
			r.NoFitReasons[hash] = place.Returned{
				Region: r.Name, Reason: state.ReasonFromProto(v.GetReason()), Message: v.GetMessage(), ReasonText: reason.WithMessage(v.GetReason(), v.GetMessage()),
			}
		}
	}
}

// answersSpec reports whether a region's answer is about the spec of the request. A region of an
// earlier version ignores the spec. It explains the version that it has, with the wanted instances,
// the running ones, and each node. If it has nothing of the job, it explains the spec, but also
// with each node.
func answersSpec(g *nusav1.GroupExplanation) bool {
	return len(g.GetRegions()) == 1 && g.GetDesired() == 0 && g.GetRegions()[0].GetTaken() == 0 && len(g.GetNodes()) == 0
}

// remedy returns the remedy for a group from the best region that knows one.
func (a *regionAnswers) remedy(g place.GroupExplanation) string {
	for _, v := range g.Regions {
		for _, answer := range a.byRegion[v.Region].GetGroups() {
			if answer.GetGroup() == g.Group && answersSpec(answer) && answer.GetRemedy() != "" {
				return v.Region + ": " + answer.GetRemedy()
			}
		}
	}
	return ""
}
