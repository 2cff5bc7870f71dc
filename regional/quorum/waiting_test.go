package quorum

import (
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func TestWaitReportRepeats(t *testing.T) {
	var p waitReport
	start := time.Unix(1000, 0)
	for _, step := range []struct {
		after         time.Duration
		waiting, logs bool
	}{
		{0, true, false}, {2 * time.Second, true, false}, {3 * time.Second, true, true}, {4 * time.Second, true, false},
		{12 * time.Second, true, false}, {13 * time.Second, true, true}, {14 * time.Second, false, false},
		{30 * time.Second, true, false}, {33 * time.Second, true, true},
	} {
		if got := p.due(step.waiting, start.Add(step.after)); got != step.logs {
			t.Errorf("after %v: due %v", step.after, got)
		}
	}
}

func TestPresentDividesVoters(t *testing.T) {
	voters := []raft.Server{{ID: "a.1", Address: "10.0.0.1:7611"}, {ID: "b.2", Address: "10.0.0.2:7611"}}
	here, missing := present(voters, map[string]string{"a.1": "a", "x.9": "x"})
	if !slices.Equal(here, []string{"a"}) || !slices.Equal(missing, []string{"b.2 at 10.0.0.2:7611"}) {
		t.Errorf("%q, %q", here, missing)
	}
}
