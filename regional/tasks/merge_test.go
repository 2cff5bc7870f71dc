package tasks

import (
	"testing"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestMergedRecordIsIndexed: a copy from another server may know the node and the labels of a record that
// this server does not know, or the other way round. Lists find the merged record.
func TestMergedRecordIsIndexed(t *testing.T) {
	t.Parallel()
	full := &nusav1.StoredTask{Event: 5, Task: &nusav1.TaskRecord{
		Id: "00000000-0000-4000-8000-000000000001", Namespace: "default", Job: "a", Node: "n", NodeId: nodeID(1),
		State: nusav1.AllocState_ALLOC_STATE_PENDING, Labels: map[string]string{"team": "x"}, Placed: timestamp(second),
		Changes: []*nusav1.TaskChange{{Time: timestamp(second), State: nusav1.AllocState_ALLOC_STATE_PENDING}},
	}}
	bare := proto.CloneOf(full)
	bare.Event, bare.Task.Labels, bare.Task.NodeId = 6, nil, ""
	for _, order := range [][]*nusav1.StoredTask{{full, bare}, {bare, full}} {
		s, _ := newWorld(t, 1).newStore(Limits{})
		for _, rec := range order {
			if err := mergeAll(s, []*nusav1.StoredTask{proto.CloneOf(rec)}); err != nil {
				t.Fatal(err)
			}
		}
		req := &nusav1.ListTasksRequest{Labels: map[string]string{"team": "x"}, Node: nodeID(1)}
		page, err := s.list(newQuery(req, "sea", func(string) bool { return true }), nil, 10, maxSteps)
		if err != nil || len(page.Items) != 1 {
			t.Fatal(page, err)
		}
	}
}
