package parts

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/bench/emulate"
	"github.com/nusa-scheduler/nusa/bench/load"
	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/submits"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testWait bounds every wait of a test: far more than any step takes.
const testWait = time.Minute

// seen counts the slots that regions received, and those that they know as accepted.
type seen struct {
	mu                sync.Mutex
	offered, accepted map[string]int
	changed           chan struct{}
}

func newSeen() *seen {
	return &seen{offered: map[string]int{}, accepted: map[string]int{}, changed: make(chan struct{}, 1)}
}

func (s *seen) note(in map[string]int) func(*nusav1.Slot, time.Time) {
	return func(slot *nusav1.Slot, _ time.Time) {
		s.mu.Lock()
		in[fmt.Sprintf("%s/%d at %s", slot.GetJob(), slot.GetFrom(), slot.GetRegion())]++
		s.mu.Unlock()
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
}

// await waits until n slots are accepted.
func (s *seen) await(t *testing.T, n int) {
	t.Helper()
	late := time.After(testWait)
	for {
		s.mu.Lock()
		offered, accepted := len(s.offered), len(s.accepted)
		s.mu.Unlock()
		if accepted >= n {
			return
		}
		select {
		case <-s.changed:
		case <-late:
			t.Fatalf("%d slots offered, %d accepted, want %d", offered, accepted, n)
		}
	}
}

// spec returns a job of a test. Each third job has three instances.
func spec(prefix string) func(i int) *nusav1.JobSpec {
	return func(i int) *nusav1.JobSpec {
		count := int32(1)
		if i%3 == 0 {
			count = 3
		}
		return &nusav1.JobSpec{
			Name: fmt.Sprintf("%s%02d", prefix, i), Namespace: namespace, Groups: map[string]*nusav1.Group{"g": {Count: &count}},
		}
	}
}

// TestServesRegions: regions get and accept all slots of jobs that are submitted by calls and by
// stream, and watches show that the jobs run, also after a restart.
func TestServesRegions(t *testing.T) {
	ports, err := report.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Dir: t.TempDir(), GRPCAddr: fmt.Sprintf("127.0.0.1:%d", ports[0]), PeerAddr: fmt.Sprintf("127.0.0.1:%d", ports[1])}
	got := newSeen()
	fleet := emulate.New(emulate.Config{
		Addr: cfg.GRPCAddr, Regions: 4, Nodes: 2, Offered: got.note(got.offered), Accepted: got.note(got.accepted),
	})
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := fleet.Run(ctx); err != nil {
			t.Errorf("the regions: %v", err)
		}
	})
	const jobs, slots = 30, 50
	for life, stream := range []bool{false, true} {
		running, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- Run(running, cfg) }()
		callers, err := load.New(load.Options{Concurrency: 4, Stream: stream, Keys: true}, cfg.GRPCAddr, 2)
		if err != nil {
			t.Fatal(err)
		}
		info, err := nusav1.NewSystemClient(callers.Conns[0]).Info(ctx, &nusav1.InfoRequest{}, grpc.WaitForReady(true))
		if err != nil || !info.GetLeader() {
			t.Fatalf("%v, %v", info, err)
		}
		if err := fleet.AwaitConnected(ctx, nil); err != nil {
			t.Fatal(err)
		}
		if err := fleet.RefreshRows(ctx); err != nil {
			t.Fatal(err)
		}
		var watches sync.WaitGroup
		of := spec(fmt.Sprintf("life-%d-", life))
		all := load.Jobs{Number: jobs, Spec: of, Sent: func(int, time.Time) {}, Answered: func(i int) {
			watches.Go(func() { watch(t, ctx, callers.Client(i), of(i)) })
		}}
		if err := callers.Submit(ctx, all); err != nil {
			t.Fatal(err)
		}
		got.await(t, (life+1)*slots)
		watches.Wait()
		watch(t, ctx, callers.Client(0), spec("life-0-")(3))
		callers.Close()
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	wg.Wait()
	bytes := stored(t, cfg)
	if want := [...]int{2 * jobs * auditBytes, 2 * (jobs + 2*slots) * eventBytes}; bytes != want {
		t.Errorf("the logs have %d bytes, want %d", bytes, want)
	}
	for what, n := range got.offered {
		if n != 1 || got.accepted[what] != 1 {
			t.Errorf("%s: offered %d times, accepted %d times", what, n, got.accepted[what])
		}
	}
	if len(got.offered) != 2*slots {
		t.Errorf("%d slots, want %d", len(got.offered), 2*slots)
	}
}

// stored returns how many bytes the audit log and the log of events have.
func stored(t *testing.T, cfg Config) (bytes [2]int) {
	t.Helper()
	p, err := open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer p.store.Close()
	for i, prefix := range logs {
		if _, err := p.store.List(t.Context(), prefix, func(kv store.KV) error {
			bytes[i] += len(kv.Value)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return bytes
}

// watch follows a job until all instances run.
func watch(t *testing.T, ctx context.Context, client nusav1.JobsClient, of *nusav1.JobSpec) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Watch(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: of.GetNamespace(), Name: of.GetName()}})
	if err != nil {
		t.Error(err)
		return
	}
	for {
		job, err := stream.Recv()
		if err != nil {
			t.Errorf("watch %s: %v", of.GetName(), err)
			return
		}
		want := of.GetGroups()["g"].GetCount()
		if g := job.GetStatus().GetGroups()["g"]; job.GetSpec().GetName() != of.GetName() || g.GetDesired() != want {
			t.Errorf("watch %s: %v", of.GetName(), job)
			return
		} else if g.GetCounts().GetRunning() == want {
			return
		}
	}
}

// TestJobIsKnownBeforeTheAnswer: when a submit is answered, a watch finds the job.
func TestJobIsKnownBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &parts{requests: make(chan request, 1), jobs: map[string]*job{}, offered: map[string]*nusav1.Slot{}, sessions: []*session{{region: "a"}}}
		raw, err := proto.Marshal(&nusav1.SubmitRequest{Spec: spec("j")(1)})
		if err != nil {
			t.Fatal(err)
		}
		answered := make(chan int64)
		if err := p.begin(t.Context(), submits.NewRequest(raw), answered); err != nil {
			t.Fatal(err)
		}
		r := <-p.requests
		go r.stored(7, &outgoing{})
		synctest.Wait() // until it answers
		if p.jobs[namespace+"/j01"] == nil {
			t.Error("the submit is answered, and the job is not known")
		}
		<-answered
	})
}

func TestReadSpec(t *testing.T) {
	encoded := func(s *nusav1.JobSpec) []byte {
		out, err := proto.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	count := int32(7)
	for want, in := range map[string][]byte{
		"j g 7": encoded(&nusav1.JobSpec{Name: "j", Type: 1, Groups: map[string]*nusav1.Group{"g": {Pool: "p", Count: &count}}}),
		"j g 1": encoded(&nusav1.JobSpec{Name: "j", Groups: map[string]*nusav1.Group{"g": {}}}),
		"  1":   {0xff},
	} {
		name, group, n := readSpec(in)
		if got := fmt.Sprintf("%s %s %d", name, group, n); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
