package global

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/room"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// bigJob returns a job of about 250 kB.
func bigJob(name string) *nusav1.JobSpec {
	return testJob(name, 1, func(s *nusav1.JobSpec) {
		task := s.GetGroups()["web"].GetTasks()["server"]
		task.Env = map[string]string{}
		for i := range 8 {
			task.Env[fmt.Sprintf("TEXT_%d", i)] = strings.Repeat("x", 31_000)
		}
	})
}

// fill submits jobs until one is refused, and returns how many were stored.
func (s *testServer) fill(prefix string, most int) (stored int, refusal error) {
	s.t.Helper()
	for i := range most {
		_, err := s.jobs().Submit(s.t.Context(), &nusav1.SubmitRequest{Spec: bigJob(fmt.Sprintf("%s%d", prefix, i))})
		if err != nil {
			return i, err
		}
	}
	s.t.Fatalf("%d jobs of 250 kB were stored", most)
	return 0, nil
}

// refusedForRoom checks that a submit was refused for lack of room in the store, with the numbers.
func refusedForRoom(t *testing.T, err error, text string) {
	t.Helper()
	e := rpcerr.From(err)
	if status.Code(err) != codes.ResourceExhausted || e.Reason != rpcerr.ReasonStoreFull || e.Metadata[rpcerr.KeyUsed] == "" || e.Metadata[rpcerr.KeyLimit] == "" ||
		!strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "--purge") {
		t.Errorf("the submit ended with %v", err)
	}
}

func (s *testServer) purge(name string) {
	s.t.Helper()
	if _, err := s.jobs().Stop(s.t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: name}, Purge: true}); err != nil {
		s.t.Fatalf("purge %s: %v", name, err)
	}
}

// usage returns what the active server reports about its store.
func (s *testServer) usage() *nusav1.StoreUsage {
	s.t.Helper()
	tree, err := nusav1.NewTopologyClient(s.conn).Get(s.t.Context(), &nusav1.GetTopologyRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, srv := range tree.GetServers() {
		if srv.GetActive() {
			return srv.GetStore()
		}
	}
	s.t.Fatal("no server is active")
	return nil
}

// TestStoreFills: submits are refused before etcd is full, and an alarm begins long before that.
// Reads, placement, stops and purges continue in the same leadership term. After purges the store
// has room again without an operator. A server that starts with the full store serves calls.
func TestStoreFills(t *testing.T) {
	t.Parallel()
	const quota = 40 << 20
	f := newFederation()
	dir := t.TempDir()
	s := f.start(t, "g1", f.overEtcd(dir, Etcd{PeerAddr: "127.0.0.1:0", Quota: quota}))
	r := s.joined("alpha")
	stored, err := s.fill("big", 400)
	refusedForRoom(t, err, "it takes new jobs up to 90 %")
	if stored < 20 {
		t.Errorf("the store took only %d jobs", stored)
	}
	waitInfo(t, s, "active with an alarm", func(i *nusav1.InfoResponse) bool {
		return i.GetLeader() && len(i.GetAlarms()) == 1 && strings.Contains(i.GetAlarms()[0], "--store-quota")
	})
	if list, err := s.jobs().List(t.Context(), &nusav1.ListJobsRequest{}); err != nil || len(list.GetJobs()) == 0 {
		t.Errorf("%d jobs are listed, %v", len(list.GetJobs()), err)
	}
	var use *nusav1.StoreUsage
	s.eventually("the store is full", func() bool { // the size that is shown is measured each second
		use = s.usage()
		return use.GetUsedBytes() >= quota*9/10
	})
	if use.GetQuotaBytes() != quota || use.GetJobs() != int64(stored) || use.GetKeys() < int64(stored) || use.GetJobBytes() < int64(stored)*200_000 {
		t.Errorf("usage %v after %d jobs", use, stored)
	}
	if _, err := s.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "big0"}}); err != nil {
		t.Errorf("stop: %v", err)
	}
	r.waitSlot("default/big1/web/0", accepted)
	for i := range stored / 2 {
		s.purge(fmt.Sprintf("big%d", i))
	}
	s.eventuallySubmits(bigJob("again"))
	r.mu.Lock()
	ended := r.err
	r.mu.Unlock()
	if ended != nil {
		t.Errorf("the leadership term ended: %v", ended)
	}
	_, err = s.fill("more", 400)
	refusedForRoom(t, err, "it takes new jobs up to 90 %")
	r.leave()
	s.stop()
	again := f.start(t, "g1", f.overEtcd(dir, Etcd{PeerAddr: "127.0.0.1:0", Quota: quota}))
	waitActive(t, again)
	if use := again.usage(); use.GetJobs() < int64(stored)/2 || use.GetQuotaBytes() != quota {
		t.Errorf("after a restart: %v", use)
	}
	again.purge("again")
}

// eventuallySubmits submits a job once there is room.
func (s *testServer) eventuallySubmits(spec *nusav1.JobSpec) {
	s.t.Helper()
	deadline := time.Now().Add(testWait)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := s.jobs().Submit(s.t.Context(), &nusav1.SubmitRequest{Spec: spec})
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("there is still no room: %v", err)
		}
		<-tick.C
	}
}

// TestJobsAreBounded: a job beyond the limit of all namespaces or of its own is refused with the
// numbers. Jobs of other namespaces, smaller versions and stops are still accepted.
func TestJobsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFederation()
	s := f.start(t, "g1", func(c *Config) { c.JobsMax, c.NamespaceMax = 4<<20, 2<<20 })
	s.joined("alpha")
	stored, err := s.fill("one", 20)
	refusedForRoom(t, err, "the jobs of namespace default take")
	plan, err := s.jobs().Plan(t.Context(), &nusav1.PlanRequest{Spec: bigJob("planned")})
	const warning = "a submit is refused now: the jobs of namespace default take"
	if err != nil || len(plan.GetSlots()) != 1 || !slices.ContainsFunc(plan.GetWarnings(), func(w string) bool { return strings.HasPrefix(w, warning) }) {
		t.Errorf("the plan of a job that is refused now: %v, %v", plan, err)
	}
	if stored != 8 {
		t.Errorf("a namespace of 2 MiB took %d jobs of 250 kB", stored)
	}
	s.submit(testJob("one0", 1)) // smaller than before
	s.submit(bigJob("one8"))
	for i := range 20 {
		spec := bigJob(fmt.Sprintf("job%d", i))
		spec.Namespace = fmt.Sprintf("ns%d", i)
		if _, err = s.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: spec}); err != nil {
			break
		}
		stored++
	}
	refusedForRoom(t, err, "the jobs of all namespaces take")
	if stored != 16 {
		t.Errorf("4 MiB took %d jobs of 250 kB", stored)
	}
	s.purge("one1")
	s.eventuallySubmits(bigJob("one9"))
}

// TestEtcdWithoutSpace: an etcd without space refuses every write, also those of elections. The
// error says so. A server then makes room by itself and becomes active.
func TestEtcdWithoutSpace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	member, err := store.OpenEtcd(t.Context(), store.EtcdConfig{
		Name: "etcd", DataDir: dir, ClientAddr: "127.0.0.1:0", PeerAddr: "127.0.0.1:0", Quota: 8 << 20, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close()
	f := newFederation()
	shared := f.overEtcd("", Etcd{Endpoints: []string{member.ClientAddr()}})
	s := f.start(t, "g1", shared)
	s.submit(testJob("api", 1))
	s.stop()
	for i := 0; err == nil; i++ { // one key: only history fills the store
		_, err = member.Txn(t.Context(), nil, []store.Op{store.Put("/other", bytes.Repeat([]byte("x"), 1<<20))})
		if i == 100 {
			t.Fatal("100 MiB fit into 8")
		}
	}
	if !errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrNoQuorum) {
		t.Errorf("a write into the full store: %v", err)
	}
	if use, err := member.Usage(t.Context()); err != nil || !use.NoSpace {
		t.Errorf("usage %+v, %v", use, err)
	}
	if _, err := member.Campaign(t.Context(), "/other/election/", "me", time.Second); !errors.Is(err, store.ErrFull) {
		t.Errorf("an election in the full store: %v", err)
	}
	again := f.start(t, "g1", shared)
	waitActive(t, again)
	again.eventuallySubmits(testJob("more", 1))
	if use, err := member.Usage(t.Context()); err != nil || use.NoSpace || use.InUse > 8<<20 {
		t.Errorf("usage after the server has made room: %+v, %v", use, err)
	}
}

// TestWhyNoServerIsActive: the error about a full etcd does not blame a missing quorum.
func TestWhyNoServerIsActive(t *testing.T) {
	s := &server{}
	for _, c := range []struct {
		full bool
		want string
	}{{false, "no quorum"}, {true, "etcd is full"}} {
		s.usage.Store(&room.Usage{NoSpace: c.full})
		if _, _, err := s.target(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), c.want) {
			t.Errorf("full %t: %v", c.full, err)
		}
	}
}
