package wire

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

// anyReports draws random messages of reports, with tasks in several states.
var anyReports = rapid.Custom(func(t *rapid.T) *nusav1.AllocReports {
	text, number := rapid.StringMatching(`[a-z€]{0,6}`), rapid.Int32Range(0, 300)
	stateOf := rapid.Map(rapid.Int32Range(0, 9), func(n int32) nusav1.AllocState { return nusav1.AllocState(n) })
	m := &nusav1.AllocReports{
		Full: rapid.Bool().Draw(t, "full"), Last: rapid.Bool().Draw(t, "last"),
		Removed: rapid.SliceOfN(text, 0, 3).Draw(t, "removed"),
	}
	if rapid.Bool().Draw(t, "positioned") {
		m.Position = &nusav1.Position{Epoch: text.Draw(t, "epoch"), Sequence: rapid.Uint64().Draw(t, "sequence")}
	}
	for range rapid.IntRange(0, 3).Draw(t, "reports") {
		r := &nusav1.AllocReport{
			Id: text.Draw(t, "id"), State: stateOf.Draw(t, "state"), Declined: rapid.Bool().Draw(t, "declined"),
			Reason: nusav1.Reason(rapid.Int32Range(0, 40).Draw(t, "reason")), Message: text.Draw(t, "message"),
			Incarnation: 3, Index: 7, Tasks: map[string]*nusav1.TaskState{},
		}
		for range rapid.IntRange(0, 3).Draw(t, "tasks") {
			r.Tasks[text.Draw(t, "task")] = &nusav1.TaskState{
				State: stateOf.Draw(t, "task state"), Restarts: number.Draw(t, "restarts"), ExitCode: number.Draw(t, "exit"),
				Started: &timestamppb.Timestamp{Seconds: 5}, Events: []*nusav1.TaskEvent{{Type: text.Draw(t, "event")}},
			}
		}
		if rapid.Bool().Draw(t, "failed") {
			r.Failure = &nusav1.Failure{
				Category: nusav1.FailureCategory(rapid.Int32Range(0, 9).Draw(t, "category")), Task: text.Draw(t, "failed task"),
				ExitCode: number.Draw(t, "exit code"), Signal: number.Draw(t, "signal"), Permanent: rapid.Bool().Draw(t, "permanent"),
			}
		}
		m.Reports = append(m.Reports, r)
	}
	return m
})

// TestReadReportsEqualsGeneratedCode: the decoder returns the same as the generated code,
// and equal tasks are stored as equal bytes.
func TestReadReportsEqualsGeneratedCode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := anyReports.Draw(t, "reports")
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ReadReports(raw)
		if err != nil {
			t.Fatal(err)
		}
		want := link.Batch[state.AllocReport]{Full: m.Full, Last: m.Last, Position: link.Position(PositionFromProto(m.GetPosition()))}
		for _, r := range m.Reports {
			restarts, down := int32(0), false
			for _, s := range r.Tasks {
				restarts += s.Restarts
				down = down || s.State != nusav1.AllocState_ALLOC_STATE_RUNNING && s.State != nusav1.AllocState_ALLOC_STATE_COMPLETE
			}
			var tasks []byte
			if len(r.Tasks) > 0 || r.Output != "" {
				if tasks, err = Deterministic.Marshal(&nusav1.Allocation{Tasks: r.Tasks, Output: r.Output}); err != nil {
					t.Fatal(err)
				}
			}
			want.Items = append(want.Items, link.Item[state.AllocReport]{Key: r.Id, Value: state.AllocReport{
				ID: r.Id, State: state.AllocState(r.State), Declined: r.Declined, Reason: ReasonFromProto(r.Reason), Message: r.Message,
				Tasks: tasks, Restarts: restarts, Down: down && r.State == nusav1.AllocState_ALLOC_STATE_RUNNING,
			}})
		}
		if !slices.Equal(got.Removed, m.Removed) {
			t.Fatalf("removed %q, want %q", got.Removed, m.Removed)
		}
		got.Removed = nil
		for i, r := range m.Reports {
			read := got.Items[i].Value.Failure
			got.Items[i].Value.Failure = nil
			if f := r.Failure; f != nil {
				want := retry.Failure{Category: CategoryFromProto(f.Category), Task: f.Task, ExitCode: f.ExitCode, Signal: f.Signal, Permanent: f.Permanent}
				if read == nil || *read != want {
					t.Fatalf("read %+v, want %+v", read, want)
				}
			} else if read != nil {
				t.Fatalf("read %+v, want no failure", read)
			}
		}
		if a, b := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); a != b {
			t.Fatalf("read  %s\nwant %s", a, b)
		}
	})
}

// FuzzReadReports looks for input that panics.
func FuzzReadReports(f *testing.F) {
	raw, _ := proto.Marshal(anyReports.Example(1))
	f.Add(raw)
	f.Fuzz(func(_ *testing.T, raw []byte) { _, _ = ReadReports(raw) })
}

// TestTooManyReportsAreRefused: an empty report takes two bytes in the message but a
// hundred in memory. So the number of reports is bounded.
func TestTooManyReportsAreRefused(t *testing.T) {
	for n, want := range map[int]codes.Code{MaxReports: codes.OK, MaxReports + 1: codes.ResourceExhausted} {
		b, err := ReadReports(bytes.Repeat([]byte{3<<3 | 2, 0}, n))
		if status.Code(err) != want || err == nil && len(b.Items) != n {
			t.Errorf("%d reports: %d items, %v", n, len(b.Items), err)
		}
	}
}
