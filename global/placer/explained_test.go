package placer

import (
	"fmt"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/state"
)

// explainedJobs records one plan for each of some jobs. Each plan explains the given number of
// regions.
func explainedJobs(p *Placer, jobs, regions int) {
	verdicts := make([]place.RegionVerdict, regions)
	for i := range jobs {
		k := state.JobKey{Namespace: "default", Name: fmt.Sprintf("job-%05d", i)}
		if p.st.Jobs[k] == nil {
			p.st.Jobs[k] = &state.Job{Key: k}
		}
		group := place.GroupExplanation{Namespace: k.Namespace, Job: k.Name, Group: "web", Regions: verdicts}
		p.record(place.Plan{Groups: []place.GroupExplanation{group}}, map[state.JobKey]seen{k: {}}, true)
	}
}

// stored counts the jobs with an explanation, and all verdicts.
func stored(p *Placer) (jobs, verdicts int) {
	for _, j := range p.st.Jobs {
		if d := j.Decisions.Of("web"); d.Full {
			jobs, verdicts = jobs+1, verdicts+len(d.Regions)
		}
	}
	return jobs, verdicts
}

// TestStoredVerdictsAreBounded: the memory of stored explanations does not grow with the number
// of regions. The oldest explanations go first.
func TestStoredVerdictsAreBounded(t *testing.T) {
	for _, c := range []struct{ regions, jobs, want int }{
		{5, 4096, 4096}, {5, 20_000, verdictsRetained / 5}, {50, 4096, verdictsRetained / 50}, {1000, 4096, verdictsRetained / 1000},
	} {
		p := newPlacer(t)
		p.st.Lock()
		explainedJobs(p, c.jobs, c.regions)
		explainedJobs(p, c.jobs, c.regions) // the same jobs again
		jobs, verdicts := stored(p)
		if jobs != c.want || verdicts != c.want*c.regions || p.explained.total != verdicts || len(p.explained.order) != jobs || len(p.explained.verdicts) != jobs {
			t.Errorf("%d regions, %d jobs: %d have an explanation, %d verdicts; counted %d", c.regions, c.jobs, jobs, verdicts, p.explained.total)
		}
		newest := p.st.Jobs[state.JobKey{Namespace: "default", Name: fmt.Sprintf("job-%05d", c.jobs-1)}]
		if !newest.Decisions.Of("web").Full {
			t.Errorf("%d regions: the newest explanation is gone", c.regions)
		}
		p.st.Unlock()
	}
}

// TestPlansExplainByVerdicts: the number of groups that a plan explains depends on the number of
// regions too.
func TestPlansExplainByVerdicts(t *testing.T) {
	for _, c := range []struct {
		jobs, groups, regions int
		want                  bool
	}{
		{1, 1, 1000, true}, {4, 1, 1000, true}, {5, 1, 1000, false}, {1, 5, 1000, false},
		{64, 1, 64, true}, {64, 2, 64, false}, {65, 1, 5, false}, {1, 1, 5000, false},
	} {
		jobs := make([]place.Job, c.jobs)
		for i := range jobs {
			jobs[i].Groups = make([]place.Group, c.groups)
		}
		if got := explainsAll(jobs, c.regions); got != c.want {
			t.Errorf("%d jobs of %d groups, %d regions: %t", c.jobs, c.groups, c.regions, got)
		}
	}
}

// TestExplanationsOfSubmitsAreBounded: a few submits are explained at once, and of many submits a
// small share.
func TestExplanationsOfSubmitsAreBounded(t *testing.T) {
	var e explanations
	explained := 0
	for i := range 10_000 { // for a second
		if e.afford(50, time.Duration(i)*100*time.Microsecond) {
			explained++
		}
	}
	if want := int((verdictsAhead + time.Second) / verdictEvery / 50); explained < want-1 || explained > want {
		t.Errorf("%d submits are explained, want %d", explained, want)
	}
	if e.afford(50, time.Second) || !e.afford(50, time.Minute) {
		t.Error("a submit is explained in the midst of many others, or a later one is not")
	}
}
