package nodes

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestReportCommandsFitEntries: a node's full set of reports is split into
// commands that each fit a log entry. Only the last command stores the position
// and releases allocations.
func TestReportCommandsFitEntries(t *testing.T) {
	st := state.New()
	apply := func(c state.Command) {
		t.Helper()
		if r := st.Apply(st.Index()+1, c); r.Err != nil || len(r.Skipped) > 0 {
			t.Fatalf("%v, %v", r.Err, r.Skipped)
		}
	}
	apply(state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: "n", Name: "n", Pool: "default", Capacity: state.Resources{CPUMilli: 1}}}})
	job := state.Job{Key: state.JobKey{Namespace: "default", Job: "j", Local: true}, Type: state.Service, Groups: []state.Group{{Name: "g", Count: 1, Ask: state.Ask{Pool: "default"}}}}
	apply(state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: job}})
	key := state.GroupKey{Namespace: "default", Job: "j", Group: "g", Local: true}
	apply(state.Command{ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{{Key: key, JobVersion: 1, Allocs: []state.PlaceAlloc{{ID: "forgotten", NodeID: "n"}}}}}})
	apply(state.Command{SetNodeStatus: &state.SetNodeStatus{ID: "n", Status: state.NodeLost}})
	apply(state.Command{ApplyPlan: &state.ApplyPlan{Stops: []state.StopAlloc{{ID: "forgotten", GiveUp: true}}}})
	if u := st.Use("n"); u.Allocs != 1 {
		t.Fatalf("charged for %d", u.Allocs)
	}

	change := link.Change[state.AllocReport]{Full: true, Position: link.Position{Epoch: "e", Sequence: 7}}
	for i := range 10_000 {
		id := fmt.Sprintf("00000000-0000-0000-0000-%012d", i)
		change.Upserts = append(change.Upserts, link.Item[state.AllocReport]{Key: id, Value: state.AllocReport{
			ID: id, State: state.Running, Message: strings.Repeat("m", i%200),
		}})
	}
	cmds := reportCommands(st.Snapshot(), "n", change)
	total := 0
	for i, c := range cmds {
		if n := encodedSize(t, &state.Command{AgentReports: c}); n > raftlog.MaxEntryBytes {
			t.Errorf("command %d of %d has %d bytes", i, len(cmds), n)
		}
		if last := i == len(cmds)-1; c.More == last || (len(c.Released) > 0) != last {
			t.Errorf("command %d of %d: more %v, releases %v", i, len(cmds), c.More, c.Released)
		}
		total += len(c.Reports)
		if r := st.Apply(st.Index()+1, state.Command{AgentReports: c}); r.Err != nil {
			t.Fatal(r.Err)
		}
		if stored := st.Reports("n").Sequence == 7; stored == c.More {
			t.Errorf("after command %d of %d the position is stored: %v", i, len(cmds), stored)
		}
	}
	if total != 10_000 || len(cmds) < 2 || st.Use("n").Allocs != 0 {
		t.Errorf("%d reports in %d commands, charged for %d", total, len(cmds), st.Use("n").Allocs)
	}
}

// encodedSize returns the size of a command in the log. It encodes the command with the
// library that also reads the log.
func encodedSize(t *testing.T, cmd *state.Command) int {
	t.Helper()
	h := &codec.MsgpackHandle{WriteExt: true}
	h.StructToArray = true
	var out []byte
	if err := codec.NewEncoderBytes(&out, h).Encode(cmd); err != nil {
		t.Fatal(err)
	}
	return len(out)
}
