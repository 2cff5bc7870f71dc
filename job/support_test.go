package job

import (
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestMissingGPUs: a job that asks for accelerators that nobody has is refused, with what there is.
func TestMissingGPUs(t *testing.T) {
	for name, c := range map[string]struct {
		ask  *nusav1.GPU
		have map[string]int32
		want string
	}{
		"no ask":        {},
		"some device":   {ask: &nusav1.GPU{Count: 1}, have: map[string]int32{"a100": 1}},
		"a part":        {ask: &nusav1.GPU{ShareMilli: 250, Models: []string{"t4", "a100"}}, have: map[string]int32{"a100": 1}},
		"none":          {ask: &nusav1.GPU{Count: 1}, want: "groups.g.tasks.t.resources.gpu: no region has an accelerator (there are none: `nusa node status NODE` shows what a node offers)"},
		"another model": {ask: &nusav1.GPU{ShareMilli: 250, Models: []string{"t4", "h100"}}, have: map[string]int32{"a100": 2, "l4": 1, "t4": 0}, want: "groups.g.tasks.t.resources.gpu: no region has an accelerator t4 or h100 (there are 2 × a100, 1 × l4)"},
	} {
		spec := &nusav1.JobSpec{Groups: map[string]*nusav1.Group{"g": {Tasks: map[string]*nusav1.Task{"t": {Resources: &nusav1.Resources{Gpu: c.ask}}}}}}
		got := ""
		if e := MissingGPUs(spec, c.have, "no region"); len(e) > 0 {
			got = e.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
