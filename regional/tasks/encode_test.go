package tasks

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestPiecesDecode: what is written by hand is what the generated code reads.
func TestPiecesDecode(t *testing.T) {
	t.Parallel()
	e := &state.Event{
		UnixNano: 5_000_000_007, ID: "00000000-0000-4000-8000-000000000001", Namespace: "prod", Job: "a", Local: true,
		Group: "main", Index: 3, Version: 4, Node: "n1",
	}
	a := &state.Alloc{ID: e.ID, Placement: &state.Placement{}, NodeRef: &state.NodeRef{}, Attempt: 2, Epoch: 9}
	a.NodeID, a.Run = nodeID(1), 8
	var c encoder
	c.begin(e, "a@sea", "sea", a, newAbout("prod", "a@sea", map[string]string{"team": "x", "env": ""}), e.UnixNano)
	c.change(&change{
		time: 6_000_000_000, state: nusav1.AllocState_ALLOC_STATE_FAILED, reason: nusav1.Reason_REASON_EXITED, message: "exit code 1",
		restarts: 2, declined: true,
	})
	got, err := decode(c.piece(77))
	if err != nil {
		t.Fatal(err)
	}
	at := &timestamppb.Timestamp{Seconds: 6}
	want := &nusav1.StoredTask{Event: 77, Task: &nusav1.TaskRecord{
		Id: e.ID, Namespace: "prod", Job: "a@sea", Own: true, Group: "main", Index: 3, JobVersion: 4, Region: "sea", Node: "n1",
		NodeId: nodeID(1), Attempt: 2, Epoch: 9, Run: 8, Placed: &timestamppb.Timestamp{Seconds: 5, Nanos: 7}, Ended: at,
		Labels: map[string]string{"team": "x", "env": ""}, State: nusav1.AllocState_ALLOC_STATE_FAILED, Reason: nusav1.Reason_REASON_EXITED,
		Message: "exit code 1", Restarts: 2, Changes: []*nusav1.TaskChange{{
			Time: at, State: nusav1.AllocState_ALLOC_STATE_FAILED, Reason: nusav1.Reason_REASON_EXITED, Message: "exit code 1", Restarts: 2, Declined: true,
		}},
	}}
	if !proto.Equal(got, want) {
		t.Errorf("%v\nwant\n%v", got, want)
	}
}
