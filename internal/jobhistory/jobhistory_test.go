package jobhistory_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/jobhistory"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// of makes a job of versions, the latest first. Versions with an equal spec run images of the same name.
func of(images string, all ...*nusav1.JobVersion) *jobhistory.Job {
	names := strings.Fields(images)
	return &jobhistory.Job{Name: "default/web", Versions: all, Spec: func(v *nusav1.JobVersion) (*nusav1.JobSpec, error) {
		for i := range all {
			if all[i] == v {
				return &nusav1.JobSpec{Name: "web", Labels: map[string]string{"image": names[i]}}, nil
			}
		}
		return nil, status.Error(codes.Internal, "no such version")
	}}
}

func version(n int64, tag string, complete bool) *nusav1.JobVersion {
	return &nusav1.JobVersion{Version: n, Tag: tag, Complete: complete}
}

func TestTarget(t *testing.T) {
	for name, c := range map[string]struct {
		job  *jobhistory.Job
		to   string
		want int64 // 0: none is found
	}{
		"the latest that ran completely":      {of("c b a", version(3, "", false), version(2, "", false), version(1, "", true)), "", 1},
		"not one with the present spec":       {of("a b a", version(3, "", false), version(2, "", true), version(1, "", true)), "", 2},
		"the present spec, if no other":       {of("a a", version(2, "", false), version(1, "", true)), "", 1},
		"none ran completely: the one before": {of("c b a", version(7, "", true), version(5, "", false), version(1, "", false)), "", 5},
		"a number":                            {of("c b a", version(3, "", true), version(2, "", true), version(1, "", false)), "1", 1},
		"a tag":                               {of("c b a", version(3, "", true), version(2, "", true), version(1, "v1.0", false)), "v1.0", 1},
		"no such tag":                         {of("b a", version(2, "", true), version(1, "", true)), "v9.0", 0},
		"only a present":                      {of("a", version(1, "", true)), "", 0},
	} {
		v, spec, err := c.job.Target(c.to)
		if c.want == 0 {
			if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "nusa job history default/web") {
				t.Errorf("%s: %v, %v", name, v, err)
			}
			continue
		}
		if want, _ := c.job.Spec(v); err != nil || v.GetVersion() != c.want || !proto.Equal(spec, want) {
			t.Errorf("%s: version %d, %v, want %d", name, v.GetVersion(), err, c.want)
		}
	}
}

func TestDiff(t *testing.T) {
	job := of("c b a", version(5, "", false), version(3, "old", false), version(1, "", false))
	for name, c := range map[string]struct {
		from, to string
		want     string // "" : not found
	}{
		"the present one and the one before": {"", "", "5 from 3: b → c"},
		"without from":                       {"", "3", "3 from 1: a → b"},
		"by tag":                             {"old", "1", "1 from 3: b → a"},
		"the same":                           {"5", "5", "5 from 5"},
		"before the first":                   {"", "1", ""},
		"unknown":                            {"2", "", ""},
	} {
		d, err := job.Diff(&nusav1.JobDiffRequest{From: c.from, To: c.to})
		if c.want == "" {
			if status.Code(err) != codes.NotFound {
				t.Errorf("%s: %v, %v", name, d, err)
			}
			continue
		}
		if got := text(d); err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

func text(d *nusav1.JobDiff) string {
	out := fmt.Sprintf("%d from %d", d.GetTo(), d.GetFrom())
	for _, l := range d.GetLines() {
		out += ": " + l.GetOld() + " → " + l.GetNew()
	}
	return out
}

func TestReverted(t *testing.T) {
	job := of("b a", version(2, "", false), &nusav1.JobVersion{Version: 1, Failed: "no node fits"})
	resp := &nusav1.SubmitResponse{Version: 3}
	unsure := job.Reverted(resp, job.Versions[1], "")
	if unsure.GetRevertedTo() != 1 || len(unsure.GetWarnings()) != 1 || !strings.Contains(unsure.GetWarnings()[0], "it failed: no node fits") {
		t.Errorf("%v", unsure)
	}
	if asked := job.Reverted(resp, job.Versions[1], "1"); asked.GetRevertedTo() != 1 || len(asked.GetWarnings()) > 0 {
		t.Errorf("%v", asked)
	}
	if resp.GetRevertedTo() != 0 {
		t.Error("the response of the submit, which others share, was changed")
	}
}
