package state

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/compact"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestDisconnectedInstancesChange: the set of disconnected instances changes only when a region
// reports other instances. A summary that repeats the same instances causes no plan.
func TestDisconnectedInstancesChange(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	r, k := &Region{Name: "alpha"}, JobKey{"default", "api"}
	st.job(k).Record = recordOfMessage(&nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 1)}})
	one := &nusav1.DisconnectedInstances{Group: "web", From: 0, To: 1, Generation: 7, Node: "n1"}
	two := &nusav1.DisconnectedInstances{Group: "web", From: 1, To: 2, Generation: 7, Node: "n2"}
	for i, step := range []struct {
		instances []*nusav1.DisconnectedInstances
		changed   bool
	}{
		{nil, false},
		{[]*nusav1.DisconnectedInstances{one}, true},
		{[]*nusav1.DisconnectedInstances{proto.CloneOf(one)}, false},
		{[]*nusav1.DisconnectedInstances{one, two}, true},
		{[]*nusav1.DisconnectedInstances{two}, true},
		{nil, false}, // the node is back
		{[]*nusav1.DisconnectedInstances{two}, true},
	} {
		sum := &nusav1.JobSummary{Namespace: k.Namespace, Job: k.Name, Disconnected: step.instances}
		if got := st.ApplySummary(r, sum, compact.Encode(sum)); got != step.changed || len(r.Disconnected[k]) != len(step.instances) {
			t.Errorf("step %d: changed %t, want %t; held %v", i, got, step.changed, r.Disconnected[k])
		}
	}
}
