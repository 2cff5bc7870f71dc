package regional_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestPoolWeighsMeasuredUse: in a pool with a policy the next instance goes to the node whose heartbeats
// report little use. The instance that runs on the other node stays there, and explain shows the terms
// with the age of the statistics. The next master knows the policy, too.
func TestPoolWeighsMeasuredUse(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.disk = t.TempDir()
		w.server(1)
		w.master(1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		busy := w.measuringAgent("n1", 0.05)
		w.measuringAgent("n2", 0.05)
		w.eventually("the nodes are ready and measure", func() bool { return w.node(1, "n1").GetStats() != nil && w.node(1, "n2").GetStats() != nil })
		client := nusav1.NewPoolsClient(w.conn(1))
		set, err := client.Set(ctx, &nusav1.SetPoolRequest{Pool: &nusav1.Pool{Name: "default", Weights: &nusav1.PoolWeights{Cpu: 100}}, Revision: -1})
		if err != nil || set.GetNodes() != 2 || set.GetRegion() != regionName || set.GetRevision() == 0 {
			t.Fatalf("set: %v, %v", set, err)
		}
		w.submit(1, spec("first", 1))
		w.eventually("the first runs", func() bool { return w.running(1)["n1"] == 1 })

		busy.Store(90)
		time.Sleep(time.Minute)
		w.submit(1, spec("second", 1))
		w.eventually("the second runs on the idle node", func() bool { return w.running(1)["n2"] == 1 })
		if r := w.running(1); r["n1"] != 1 {
			t.Errorf("the first instance has moved: %v", r)
		}
		checkTerms(t, w, "cpu use", map[string]string{"n1": "90% of cpu", "n2": "5% of cpu"})

		busy.Store(-1)
		time.Sleep(time.Minute)
		checkTerms(t, w, "cpu use", map[string]string{"n1": "cpu unknown", "n2": "5% of cpu"})

		w.stop(1)
		w.server(1)
		w.master(1)
		w.eventually("the nodes are back", func() bool { return w.node(1, "n2").GetStats() != nil })
		time.Sleep(time.Minute)
		client = nusav1.NewPoolsClient(w.conn(1))
		if got, err := client.Get(ctx, &nusav1.GetPoolRequest{Name: "default"}); err != nil || got.GetWeights().GetCpu() != 100 || got.GetRevision() != set.GetRevision() {
			t.Errorf("after a restart: %v, %v", got, err)
		}
		checkTerms(t, w, "cpu use", map[string]string{"n1": "cpu unknown", "n2": "5% of cpu"})
		if out, err := client.Remove(ctx, &nusav1.RemovePoolRequest{Name: "default"}); err != nil || !out.GetRemoved() {
			t.Errorf("remove: %v, %v", out, err)
		}
		checkTerms(t, w, "cpu use", map[string]string{"n1": "", "n2": ""})
	})
}

// measuringAgent starts an agent whose heartbeats report a use of its cores in percent. Below 0, they
// report nothing.
func (w *world) measuringAgent(name string, share float64) *atomic.Int32 {
	var percent atomic.Int32
	percent.Store(int32(100 * share))
	w.agent(name, runs).locked(func(a *fakeAgent) {
		a.stats = func() *nusav1.NodeStats {
			p := percent.Load()
			if p < 0 {
				return nil
			}
			return &nusav1.NodeStats{Cpu: float64(p) / 100, MemoryUsedBytes: 1 << 30, MemoryAvailableBytes: 3 << 30}
		}
	})
	return &percent
}

// checkTerms compares a term of the nodes' scores with their details. An empty detail: there is no term.
func checkTerms(t *testing.T, w *world, name string, want map[string]string) {
	t.Helper()
	ctx, cancel := callCtx()
	defer cancel()
	e, err := nusav1.NewJobsClient(w.conn(1)).Explain(ctx, &nusav1.ExplainRequest{Job: ref("second")})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range e.GetGroups()[0].GetNodes() {
		detail := ""
		for _, term := range n.GetTerms() {
			if term.GetName() == name {
				detail = term.GetDetail()
			}
		}
		if detail != want[n.GetNodeName()] {
			t.Errorf("%s: %q, want %q", n.GetNodeName(), detail, want[n.GetNodeName()])
		}
		if i := n.GetInputs(); strings.Contains(detail, "%") && (len(i) != 1 || i[0].GetName() != "statistics" || i[0].GetAge().AsDuration() > 10*time.Second) {
			t.Errorf("%s: the age of its statistics: %v", n.GetNodeName(), i)
		}
	}
}

// TestPoolsRefuseFaults: what is wrong with a policy is named, and a revision protects from changes of
// others.
func TestPoolsRefuseFaults(t *testing.T) {
	oneNode(t, func(t *testing.T, w *world, _ nusav1.JobsClient, ctx context.Context) {
		client := nusav1.NewPoolsClient(w.conn(1))
		set := func(region, name string, cpu int32, revision int64) (*nusav1.Pool, error) {
			return client.Set(ctx, &nusav1.SetPoolRequest{Region: region, Revision: revision, Pool: &nusav1.Pool{Name: name, Weights: &nusav1.PoolWeights{Cpu: cpu}}})
		}
		first, err := set(regionName, "metal", 5, 0)
		if err != nil || first.GetNodes() != 0 {
			t.Fatalf("the first policy: %v, %v", first, err)
		}
		if same, err := set(regionName, "metal", 5, 0); err != nil || same.GetRevision() != first.GetRevision() {
			t.Errorf("an equal policy: %v, %v", same, err)
		}
		for what, c := range map[string]struct {
			region, name string
			cpu          int32
			revision     int64
			code         codes.Code
			says         string
		}{
			"another region":   {"beta", "metal", 5, 0, codes.NotFound, "beta"},
			"a weight":         {"", "metal", 101, 0, codes.InvalidArgument, "pool.weights.cpu"},
			"a negative":       {"", "metal", -1, 0, codes.InvalidArgument, "pool.weights.cpu"},
			"a name":           {"", "No Name", 5, 0, codes.InvalidArgument, "pool.name"},
			"a policy exists":  {"", "metal", 6, -1, codes.Aborted, "metal"},
			"an old revision":  {"", "metal", 6, first.GetRevision() + 1, codes.Aborted, "metal"},
			"a wrong revision": {"", "metal", 6, -2, codes.InvalidArgument, "revision"},
		} {
			if _, err := set(c.region, c.name, c.cpu, c.revision); status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if next, err := set("", "metal", 6, first.GetRevision()); err != nil || next.GetRevision() <= first.GetRevision() {
			t.Errorf("the present revision: %v, %v", next, err)
		}
		list, err := client.List(ctx, &nusav1.ListPoolsRequest{})
		if err != nil || len(list.GetPools()) != 2 || list.GetPools()[0].GetName() != "default" || list.GetPools()[0].GetRevision() != 0 || list.GetPools()[1].GetWeights().GetCpu() != 6 {
			t.Errorf("list: %v, %v", list, err)
		}
		if _, err := client.Get(ctx, &nusav1.GetPoolRequest{Name: "none"}); status.Code(err) != codes.NotFound {
			t.Errorf("an unknown pool: %v", err)
		}
		if out, err := client.Remove(ctx, &nusav1.RemovePoolRequest{Name: "none"}); err != nil || out.GetRemoved() {
			t.Errorf("remove of an unknown policy: %v, %v", out, err)
		}
	})
}
