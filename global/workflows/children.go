package workflows

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/schedules"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/steps"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// ask is what a job of a step is made from.
type ask struct {
	name, step, region string
	index, attempt     int
	values             map[string]string
	payload            []byte
	labels             map[string]string
	// ref is the record of the job that the step runs, and wrong why there is none.
	ref   *state.Record
	wrong error
	began *nusav1.WorkflowRun
	// data is where the data of the step is, and how much. Nil: nowhere, or it is not known.
	data *nusav1.Near
}

// child is a job that was made before its transaction.
type child struct {
	job    *schedules.Child
	err    error
	region string
}

// build makes jobs.
func build(d *definition, asks []ask) map[string]child {
	out := make(map[string]child, len(asks))
	for _, a := range asks {
		c, err := childOf(d, a)
		out[a.name] = child{c, err, a.region}
	}
	return out
}

// childOf makes one job.
func childOf(d *definition, a ask) (*schedules.Child, error) {
	var spec *nusav1.JobSpec
	switch {
	case a.wrong != nil:
		return nil, a.wrong
	case a.ref != nil:
		spec = a.ref.Spec() // not in ask: it costs milliseconds for a large job
		if err := chooseValues(spec, a.values, len(a.payload) > 0); err != nil {
			return nil, err
		}
		if own := d.steps[a.index].GetRegions(); own != nil {
			spec.Regions = proto.CloneOf(own) // the rule about data is added to it
		}
	default:
		spec = job.StepSpec(d.spec, a.step)
	}
	if a.data != nil {
		near(spec, a.data)
	}
	if a.region != "" {
		if err := pin(spec, a.region); err != nil {
			return nil, err
		}
	}
	at := a.began.GetBegan()
	if a.began.GetTime() != nil { // the run of a backfill begins long after its time
		at = a.began.GetTime()
	}
	return schedules.NewChild(spec, a.name, at.AsTime(), a.payload, a.values, a.labels)
}

// dataWeight is the weight of the distance to the data of a step, in regions.near: the greatest.
const dataWeight = 100

// dataOf returns the rule about the data of a step: the region in which most instances of the former step ran. The
// lock is held.
func dataOf(b *Book, r *run, i int) *nusav1.Near {
	d := r.def.steps[i].GetData()
	from, is := r.def.graph.Index(d.GetFrom())
	if d == nil || !is {
		return nil
	}
	at, known := r.ranIn[from]
	if !known {
		at = mostIn(b, r, from)
	}
	if !known && r.snap.Steps[from].End != steps.None {
		r.ranIn[from] = at // each item of this step asks again
	}
	if at == "" {
		return nil
	}
	weight := int32(dataWeight)
	return &nusav1.Near{Selector: &nusav1.RegionSelector{Name: at}, DataBytes: d.GetSizeBytes(), Weight: &weight}
}

// mostIn returns the region in which most instances of a step ran. Empty: in none. The lock is held.
func mostIn(b *Book, r *run, i int) (best string) {
	counts := map[string]int{}
	for item, rec := range r.recs[i] {
		if rec.GetAttempts() == 0 {
			continue
		}
		j := b.st.Jobs[r.childKey(i, item, int(rec.GetAttempts()))]
		if j == nil {
			continue
		}
		for s := range j.Slots.All() {
			if s.Vacant {
				continue
			}
			counts[s.Region] += int(s.To - s.From)
			if n := counts[s.Region]; best == "" || n > counts[best] || n == counts[best] && s.Region < best {
				best = s.Region
			}
		}
	}
	return best
}

// near adds a rule to the regions of a job, and to those of its groups that have their own.
func near(spec *nusav1.JobSpec, rule *nusav1.Near) {
	if spec.Regions == nil {
		spec.Regions = &nusav1.RegionsSpec{}
	}
	spec.Regions.Near = append(spec.Regions.Near, rule)
	for _, g := range spec.GetGroups() {
		if g.GetRegions() != nil {
			g.Regions.Near = append(g.Regions.Near, rule)
		}
	}
}

// pin lets a job run only in one region. Its own rules stay, so it is an error if they do not allow the region.
func pin(spec *nusav1.JobSpec, region string) error {
	narrow := func(of *nusav1.RegionsSpec) (*nusav1.RegionsSpec, error) {
		out := &nusav1.RegionsSpec{Near: of.GetNear()}
		for _, s := range of.GetAllow() {
			if s.GetName() == "" || s.GetName() == region {
				out.Allow = append(out.Allow, &nusav1.RegionSelector{Name: region, Labels: s.GetLabels()})
			}
		}
		switch {
		case len(of.GetAllow()) == 0:
			out.Allow = []*nusav1.RegionSelector{{Name: region}}
		case len(out.GetAllow()) == 0:
			return nil, status.Errorf(codes.FailedPrecondition, "same_region: the first step runs in region %s, and regions.allow of this step does not have it", region)
		}
		return out, nil
	}
	var err error
	spec.Regions, err = narrow(spec.GetRegions())
	for _, g := range spec.GetGroups() {
		if g.GetRegions() == nil {
			continue
		}
		var wrong error
		g.Regions, wrong = narrow(g.GetRegions())
		err = cmp.Or(err, wrong)
	}
	return err
}

// chooseValues keeps those values for which the job that a step runs has names. payload: the step has one.
func chooseValues(of *nusav1.JobSpec, values map[string]string, payload bool) error {
	p := of.GetParameterized()
	switch {
	case of.GetWorkflow() != nil:
		return status.Errorf(codes.FailedPrecondition, "job %s is a workflow: give its name as workflow instead of ref", of.GetName())
	case p == nil:
		return status.Errorf(codes.FailedPrecondition, "job %s has no parameterized: a step cannot run it", of.GetName())
	case p.GetPayload() == nusav1.Payload_PAYLOAD_REQUIRED && !payload:
		return status.Errorf(codes.FailedPrecondition, "job %s requires a payload: the run has none, or the step does not have payload: true", of.GetName())
	case p.GetPayload() == nusav1.Payload_PAYLOAD_FORBIDDEN && payload:
		return status.Errorf(codes.FailedPrecondition, "job %s takes no payload: leave payload of the step out", of.GetName())
	}
	known := slices.Concat(p.GetMetaRequired(), p.GetMetaOptional())
	maps.DeleteFunc(values, func(k, _ string) bool { return !slices.Contains(known, k) })
	var missing []string
	for _, k := range p.GetMetaRequired() {
		if _, given := values[k]; !given {
			missing = append(missing, k)
		}
	}
	if len(missing) > 0 {
		return status.Errorf(codes.FailedPrecondition, "job %s requires the values %s: give the step meta, or the workflow parameters", of.GetName(), strings.Join(missing, ", "))
	}
	return nil
}
