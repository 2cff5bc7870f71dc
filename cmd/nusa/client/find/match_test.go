package find

import (
	"fmt"
	"strings"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestMatch(t *testing.T) {
	job := func(namespace, name string) *nusav1.Job {
		return &nusav1.Job{Spec: &nusav1.JobSpec{Namespace: namespace, Name: name}}
	}
	all := objects([]*nusav1.WorkflowRun{{Namespace: "default", Name: "etl.3f9a"}},
		[]*nusav1.Job{job("default", "web"), job("default", "web-2"), job("team", "web"), job("default", "oslo"), job("default", "etl.3f9a--fetch")},
		[]*nusav1.Region{{Definition: &nusav1.RegionDefinition{Name: "oslo"}}},
		[]*nusav1.Node{{Id: "1f3a-77", Name: "oslo-1", Region: "oslo"}},
		[]*nusav1.Allocation{{Id: "1f3b-88", Job: "web", Group: "api", Index: 2}})
	for text, want := range map[string]string{
		"web":       "job default/web, job team/web",
		"web-":      "job default/web-2",
		"we":        "job default/web, job default/web-2, job team/web, alloc 1f3b-88 web/api/2",
		"oslo":      "job default/oslo, region oslo",
		"oslo-1":    "node oslo/oslo-1",
		"1f3":       "node oslo/oslo-1, alloc 1f3b-88 web/api/2",
		"1f3b":      "alloc 1f3b-88 web/api/2",
		"web/api/2": "alloc 1f3b-88 web/api/2",
		"team/":     "job team/web",
		"etl.3f9a":  "workflow default/etl.3f9a",
		"etl.3":     "workflow default/etl.3f9a, job default/etl.3f9a--fetch",
		"nothing":   "",
	} {
		var got []string
		for _, o := range match(all, text) {
			got = append(got, fmt.Sprint(o.kind, " ", o.name))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: %s, want %s", text, strings.Join(got, ", "), want)
		}
	}
}
