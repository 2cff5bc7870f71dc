package global

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// askRounds bounds how often a dry run asks: an answer may bring regions in
	// that did not matter before.
	askRounds = 3
	// askRegions bounds who is asked in a round.
	askRegions = 16
	// askDeadline is for a round; who is later counts as reported.
	askDeadline = 2 * time.Second
)

// inquiry is a dry run that asks regions.
type inquiry struct {
	a        *active
	job      JobKey
	spec     *nusav1.JobSpec
	snapshot place.Snapshot
	hashes   map[string]uint64 // by group
	// answers by region; nil where one was asked and said nothing.
	answers map[string]*nusav1.Explanation
}

// planAsking plans over the snapshot of a dry run. A report knows an ask exactly
// only once a job has it, and says why nothing fits but not what would help:
// the regions that matter are asked about both.
func (a *active) planAsking(ctx context.Context, k JobKey, spec *nusav1.JobSpec, snapshot place.Snapshot) (place.Plan, *inquiry) {
	q := &inquiry{a: a, job: k, spec: spec, snapshot: snapshot, hashes: map[string]uint64{}, answers: map[string]*nusav1.Explanation{}}
	for _, j := range snapshot.Jobs {
		if j.Namespace == k.Namespace && j.Name == k.Name && j.Type != place.System {
			for _, g := range j.Groups {
				q.hashes[g.Name] = g.Ask.Hash()
			}
		}
	}
	plan := place.MakePlan(snapshot)
	for range askRounds {
		regions := q.unsure(plan)
		if len(regions) == 0 {
			break
		}
		q.ask(ctx, regions)
		plan = place.MakePlan(snapshot)
	}
	return plan, q
}

// unsure are the regions that would get instances though they have only
// estimated that they fit, or that would get none for lack of room.
func (q *inquiry) unsure(plan place.Plan) (out []string) {
	for _, g := range plan.Groups {
		hash, own := q.hashes[g.Group]
		if !own || g.Namespace != q.job.Namespace || g.Job != q.job.Name {
			continue
		}
		for _, v := range g.Regions {
			i := slices.IndexFunc(q.snapshot.Regions, func(r place.Region) bool { return r.Name == v.Region })
			_, asked := q.answers[v.Region]
			if i < 0 || asked || len(out) == askRegions || slices.Contains(out, v.Region) {
				continue
			}
			_, exact := q.snapshot.Regions[i].Fits[hash]
			if v.New > 0 && !exact || v.Reason == place.ReasonNoCapacity {
				out = append(out, v.Region)
			}
		}
	}
	return out
}

// ask takes the answers of regions into the snapshot.
func (q *inquiry) ask(ctx context.Context, regions []string) {
	ctx, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	said := make([]*nusav1.Explanation, len(regions))
	var all sync.WaitGroup
	for i, name := range regions {
		conn, err := q.a.dial(name)
		if err != nil {
			continue
		}
		all.Go(func() {
			said[i], _ = nusav1.NewJobsClient(conn).Explain(ctx, &nusav1.ExplainRequest{
				Job: &nusav1.JobRef{Namespace: q.job.Namespace, Name: q.job.Name}, Region: name, Spec: q.spec, AsGiven: true,
			}) // without an answer its report stands
		})
	}
	all.Wait()
	for i, name := range regions {
		q.answers[name] = said[i]
		at := slices.IndexFunc(q.snapshot.Regions, func(r place.Region) bool { return r.Name == name })
		r := &q.snapshot.Regions[at]
		for _, g := range said[i].GetGroups() {
			hash, known := q.hashes[g.GetGroup()]
			if !known || !asGiven(g) || r.Fits == nil {
				continue
			}
			v := g.GetRegions()[0]
			r.Fits[hash] = int(v.GetFits())
			if v.GetFits() == 0 && v.GetReason() != nusav1.Reason_REASON_UNSPECIFIED {
				if r.NoFitReasons == nil {
					r.NoFitReasons = map[uint64]place.Returned{}
				}
				r.NoFitReasons[hash] = place.Returned{
					Region: name, Reason: ReasonFromProto(v.GetReason()), Message: v.GetMessage(), ReasonText: reason.WithMessage(v.GetReason(), v.GetMessage()),
				}
			}
		}
	}
}

// asGiven says that a region's answer counts for the spec that came along. A
// region of an earlier version does not know the question, and explains the
// version that it holds: with what is wanted and runs, and each node; where it
// holds none of the job it explains the spec, but each node too.
func asGiven(g *nusav1.GroupExplanation) bool {
	return len(g.GetRegions()) == 1 && g.GetDesired() == 0 && g.GetRegions()[0].GetTaken() == 0 && len(g.GetNodes()) == 0
}

// remedy is what the best region that knows one says of a group.
func (q *inquiry) remedy(g place.GroupExplanation) string {
	for _, v := range g.Regions {
		for _, said := range q.answers[v.Region].GetGroups() {
			if said.GetGroup() == g.Group && asGiven(said) && said.GetRemedy() != "" {
				return v.Region + ": " + said.GetRemedy()
			}
		}
	}
	return ""
}
