package client

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/golden"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// taskServer has the history of four tasks. It returns two a page.
type taskServer struct {
	nusav1.UnimplementedTasksServer
}

func (taskServer) all() []*nusav1.TaskRecord {
	placed := time.Now().Add(-90 * time.Minute).Truncate(time.Millisecond)
	change := func(after time.Duration, s string, r nusav1.Reason, text string, restarts int32) *nusav1.TaskChange {
		return &nusav1.TaskChange{Time: timestamppb.New(placed.Add(after)), State: nusav1.AllocState(nusav1.AllocState_value["ALLOC_STATE_"+s]), Reason: r, Message: text, Restarts: restarts}
	}
	exited := "task main: exit code 3"
	record := func(id, job, region, node string, index int32, changes ...*nusav1.TaskChange) *nusav1.TaskRecord {
		last := changes[len(changes)-1]
		return &nusav1.TaskRecord{
			Id: id, Namespace: "default", Job: job, Group: "frame", Index: index, JobVersion: 2, Region: region, Node: node, NodeId: "0198f2a0-0000-4000-8000-00000000000" + node[len(node)-1:],
			State: last.State, Reason: last.Reason, Message: last.Message, Placed: changes[0].Time, Changes: changes, Restarts: last.Restarts,
			Labels: map[string]string{"team": "video"},
		}
	}
	failed := record("3f9a01bc-77aa-4e61-9d42-0d0e0f010203", "frames", "jakarta", "bm-1", 17,
		change(0, "PENDING", 0, "", 0), change(210*time.Millisecond, "STARTING", 0, "", 0), change(1250*time.Millisecond, "RUNNING", 0, "", 0),
		change(70*time.Second, "RUNNING", nusav1.Reason_REASON_EXITED, exited, 1), change(3*time.Minute, "FAILED", nusav1.Reason_REASON_EXITED, exited, 1))
	failed.Attempt, failed.Started, failed.Ended = 1, failed.Changes[2].Time, failed.Changes[4].Time
	failed.Tasks = map[string]*nusav1.TaskState{"main": {State: nusav1.AllocState_ALLOC_STATE_FAILED, ExitCode: 3, Restarts: 1}}
	running := record("77aa01bc-0000-4e61-9d42-0d0e0f010204", "frames", "jakarta", "bm-2", 18, change(-time.Minute, "PENDING", 0, "", 0), change(0, "RUNNING", 0, "", 0))
	running.Started = running.Changes[1].Time
	gone := record("88bb01bc-0000-4e61-9d42-0d0e0f010205", "etl@singapore", "singapore", "bm-3", 0,
		change(-2*time.Minute, "PENDING", 0, "", 0), change(0, "UNSPECIFIED", 0, "the end was missed: this server was behind", 0))
	gone.Ended, gone.Own, gone.Incomplete = gone.Changes[1].Time, true, true
	gone.ChangesDropped = 4
	first := record("99cc01bc-0000-4e61-9d42-0d0e0f010206", "frames", "singapore", "bm-4", 17, change(-4*time.Minute, "PENDING", 0, "", 0),
		&nusav1.TaskChange{Time: timestamppb.New(placed.Add(-3 * time.Minute)), State: nusav1.AllocState_ALLOC_STATE_FAILED, Reason: nusav1.Reason_REASON_INSUFFICIENT_MEMORY, Declined: true})
	first.Ended = first.Changes[1].Time
	return []*nusav1.TaskRecord{failed, running, gone, first}
}

func (s taskServer) gaps() []*nusav1.TaskGap {
	at := s.all()[2].GetPlaced().AsTime()
	return []*nusav1.TaskGap{{From: timestamppb.New(at.Add(-time.Second)), To: timestamppb.New(at.Add(time.Minute)), Missed: 12, Why: "this server was behind, and the log gave it a snapshot"}}
}

func (s taskServer) List(_ context.Context, r *nusav1.ListTasksRequest) (*nusav1.ListTasksResponse, error) {
	out := &nusav1.ListTasksResponse{}
	if r.GetPageToken() == "" {
		out.Retention = []*nusav1.TaskRetention{{Region: "singapore", Age: durationpb.New(720 * time.Hour), Most: 1_000_000, Count: 4, Gaps: s.gaps()}}
	}
	if r.GetPageToken() != "" && r.GetLimit() == 1000 { // all tasks are listed, and a region fails meanwhile
		out.Errors = []*nusav1.PartialError{{Region: "tokyo", Message: "tokyo is cut off"}}
	}
	const page = 2
	skip := len(r.GetPageToken())
	for _, t := range s.all() {
		switch {
		case r.GetJob().GetName() != "" && r.GetJob().GetName() != t.GetJob(), len(r.GetStates()) > 0 && !slices.Contains(r.GetStates(), t.GetState()),
			r.GetLabels()["team"] != "" && r.GetLabels()["team"] != t.GetLabels()["team"], r.GetNode() != "" && r.GetNode() != t.GetNode(),
			r.GetSince() != nil && t.GetPlaced().AsTime().Before(r.GetSince().AsTime()), r.GetUntil() != nil && !t.GetPlaced().AsTime().Before(r.GetUntil().AsTime()):
		case skip > 0:
			skip--
		case len(out.Tasks) == min(page, int(r.GetLimit())):
			out.NextPageToken = r.GetPageToken() + strings.Repeat("x", len(out.Tasks))
			return out, nil
		default:
			out.Tasks = append(out.Tasks, t)
		}
	}
	return out, nil
}

func (s taskServer) Get(_ context.Context, r *nusav1.GetTaskRequest) (*nusav1.TaskHistory, error) {
	all := s.all()
	for i, t := range all {
		if strings.HasPrefix(t.GetId(), r.GetId()) {
			h := &nusav1.TaskHistory{Task: t}
			switch i {
			case 0:
				h.Attempts = []*nusav1.TaskRecord{all[3]}
			case 2:
				h.Gaps = s.gaps()
			}
			return h, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "no history has a task whose id begins with %q", r.GetId())
}

// clocks are the times in the output for people.
var clocks = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d\d\d`)

// TestTaskCommands compares the output of the commands with testdata/task.txt.
func TestTaskCommands(t *testing.T) {
	f := newFake(t)
	var out strings.Builder
	for _, line := range []string{
		"list", "list --limit 1", "list --limit 0", "list --job frames --state failed,running", "list --label team=audio", "list --node bm-3 -o yaml",
		"list --since 90m30s", "list --until 90m30s --limit 0", "list --since yesterday", "list --state gone", "list --limit -1",
		"show 3f9a01bc", "show 88bb", "show 99cc", "show 3f9a -o json", "show 00", "show",
	} {
		o, e, code := f.run(t.Context(), "", append(strings.Fields("task "+line), "--addr", f.addr)...)
		o = clocks.ReplaceAllString(stamps.ReplaceAllString(o, "TIME"), "2026-11-29 05:00:00.000")
		out.WriteString("$ nusa task " + line + "\n" + o)
		for l := range strings.Lines(e) {
			out.WriteString("2> " + strings.ReplaceAll(l, f.addr, "ADDR"))
		}
		out.WriteString("= " + string(rune('0'+code)) + "\n\n")
	}
	golden.File(t, "testdata/task.txt", out.String())
}
