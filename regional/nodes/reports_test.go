package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/raftlog/logtest"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
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

// heldAgents returns the agents of a master with a node n and its allocation a. The log
// commits nothing before release is closed. begin returns a new session of the node.
func heldAgents(ctx context.Context) (fsm *raftlog.FSM, run func(), release chan struct{}, begin func() (*session, *listedStream)) {
	fsm = raftlog.NewFSM()
	key := state.JobKey{Namespace: "default", Job: "j", Local: true}
	setup := []state.Command{
		{UpsertNode: &state.UpsertNode{Node: state.Node{ID: "n", Name: "n", Pool: "default", Capacity: state.Resources{CPUMilli: 1}}}},
		{SubmitLocalJob: &state.SubmitLocalJob{Job: state.Job{Key: key, Type: state.Service, Groups: []state.Group{{Name: "g", Count: 1, Ask: state.Ask{Pool: "default"}}}}}},
		{ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{{Key: state.GroupKey{Namespace: "default", Job: "j", Group: "g", Local: true}, JobVersion: 1,
			Allocs: []state.PlaceAlloc{{ID: "a", NodeID: "n"}}}}}},
	}
	for i, c := range setup {
		fsm.Apply(&raft.Log{Index: uint64(i + 1), Data: raftlog.Entry(&c)})
	}
	release = make(chan struct{})
	log := raftlog.NewSequencer(logtest.New(fsm, uint64(len(setup)), release), fsm, func(*state.View) raftlog.Decision { return raftlog.Decision{} }, func([]state.Result) {})
	a := New(ctx, Config{
		NodeLease: time.Second, Epoch: "e", FSM: fsm, Log: log, Logger: slog.New(slog.DiscardHandler),
		Clock: func() time.Duration { return 0 }, RegionLease: func() time.Duration { return 0 },
		Servers: func() []*nusav1.RegionalServer { return nil },
	})
	begin = func() (*session, *listedStream) {
		st := &listedStream{}
		return &session{agents: a, node: a.ensure("n"), stream: st, hello: &nusav1.AgentHello{NodeId: "n"},
			inbox: link.NewInbox[state.AllocReport](wire.MaxReports), sending: sendActive}, st
	}
	return fsm, func() { _ = log.Run(ctx) }, release, begin
}

// TestOrdersWaitForTheReportsOfAnEarlierSession: an agent declines an allocation or says goodbye, is
// killed and forgets that. The report is still in flight when the agent connects again. It gets
// no order before the report is committed, and then no order for a declined allocation.
// After a goodbye it must connect again. The earlier session proposes nothing more.
func TestOrdersWaitForTheReportsOfAnEarlierSession(t *testing.T) {
	declined, err := proto.Marshal(&nusav1.AllocReports{Full: true, Last: true, Position: &nusav1.Position{Epoch: "first", Sequence: 1}, Reports: []*nusav1.AllocReport{
		{Id: "a", State: nusav1.AllocState_ALLOC_STATE_FAILED, Declined: true}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]wire.AgentMessage{
		"declined": {Kind: wire.KindReports, Body: declined},
		"goodbye":  {Kind: wire.KindGoodbye},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				fsm, run, release, begin := heldAgents(ctx)
				ended := make(chan struct{})
				go func() { defer close(ended); run() }()
				first, st := begin()
				if err := first.greet(ctx); err != nil || strings.Join(st.sent, " ") != "grant orders" { // the welcome counts as a grant
					t.Fatalf("the first session: %v, sent %v", err, st.sent)
				}
				alive, kill := context.WithCancel(ctx)
				killed := make(chan error, 1)
				go func() {
					_, err := first.handle(alive, m)
					killed <- err
				}()
				synctest.Wait()
				kill()
				if err := <-killed; !errors.Is(err, raftlog.ErrUnknownOutcome) {
					t.Errorf("the first session ends with %v", err)
				}

				second, st := begin()
				greeted := make(chan error, 1)
				go func() { greeted <- second.greet(ctx) }()
				synctest.Wait()
				if len(st.sent) > 0 {
					t.Errorf("while the report is in flight: sent %v", st.sent)
				}
				if err := first.propose(ctx, &state.Command{AgentReports: &state.AgentReports{NodeID: "n"}}); !errors.Is(err, errSuperseded) {
					t.Errorf("a further report of the first session: %v", err)
				}
				close(release)
				err := <-greeted
				_, ordered := second.node.outbox.Get("a")
				was, _ := fsm.View().Alloc("a")
				node, _ := fsm.View().Node("n")
				if m.Kind == wire.KindReports {
					if err != nil || ordered || was.State != state.Failed {
						t.Errorf("the second session: %v, ordered %v: %s", err, ordered, was.State)
					}
				} else if status.Code(err) != codes.Unavailable || node.Status != state.NodeLeft || len(st.sent) > 0 {
					t.Errorf("the second session: %v, sent %v; the node is %s", err, st.sent, node.Status)
				}
				if second.node.inFlight.Load() != nil {
					t.Error("still in flight")
				}
				cancel()
				<-ended
			})
		})
	}
}
