package global

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/eventlog"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestRecover(t *testing.T) { testRecover(t, newFederation(), shortLeases) }

// shortLeases shortens the wait after a recovery.
func shortLeases(c *Config) { c.Lease = time.Second }

func TestEtcdRecover(t *testing.T) {
	t.Parallel()
	f := newFederation()
	member := openMember(t, t.TempDir(), "127.0.0.1:0")
	testRecover(t, f, shortLeases, f.overEtcd("", Etcd{Endpoints: []string{member.ClientAddr()}}))
}

// TestServerKnowsMoreThanTheStore: a server starts with a store that was restored from an old copy.
// It notices the restore before a region shows it, also if the server has only been a standby.
func TestServerKnowsMoreThanTheStore(t *testing.T) {
	f := newFederation()
	dir := t.TempDir()
	here := func(c *Config) { c.DataDir, c.Lease = dir, time.Second }
	s := f.start(t, "g0")
	standby := f.start(t, "g1", here)
	s.submit(testJob("api", 1))
	c := f.mem.Client()
	defer c.Close()
	_, _, before, err := c.Get(t.Context(), state.ClusterKey)
	if err != nil {
		t.Fatal(err)
	}
	id, _ := f.identity(t)
	noted := func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "revision"))
		revision, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		return err == nil && revision >= before
	}
	for deadline := time.Now().Add(testWait); !noted(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the server that stands by has not noted the revision")
		}
	}
	standby.stop()
	s.stop()
	// The copy has the identity of the federation and little else.
	f.mem = store.NewMemory()
	restored := f.mem.Client()
	defer restored.Close()
	if _, err := restored.Txn(t.Context(), nil, []store.Op{store.Put(state.ClusterKey, []byte(id))}); err != nil {
		t.Fatal(err)
	}
	s = f.start(t, "g1", here)
	waitInfo(t, s, "active with an alarm", func(i *nusav1.InfoResponse) bool { return i.GetLeader() && len(i.GetAlarms()) == 1 })
	resp, err := nusav1.NewSystemClient(s.conn).Recover(t.Context(), &nusav1.RecoverRequest{FederationId: id})
	if err != nil || resp.GetRevision() <= before {
		t.Fatalf("recovery: %v, %v; the server knew revision %d", resp, err, before)
	}
	waitInfo(t, s, "active without an alarm", func(i *nusav1.InfoResponse) bool { return i.GetLeader() && len(i.GetAlarms()) == 0 })
	s.stop()
	s = f.start(t, "g1", here)
	waitInfo(t, s, "active without an alarm", func(i *nusav1.InfoResponse) bool { return i.GetLeader() && len(i.GetAlarms()) == 0 })
	// The numbers of the events that the copy does not have are not used again.
	watch, err := nusav1.NewEventsClient(s.conn).Watch(t.Context(), &nusav1.WatchEventsRequest{Token: "0"})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := watch.Recv(); err != nil || !e.GetReset_() || e.GetMissed() != 0 {
		t.Errorf("the first event is %v, %v", e, err)
	}
	for number := uint64(eventlog.Jump + 1); ; number++ {
		e, err := watch.Recv()
		if err != nil || e.GetNumber() != number {
			t.Fatalf("after the reset: %v, %v; want number %d", e, err, number)
		}
		if e.GetType() == "store.recovered" {
			break
		}
	}
}

// TestRecoverOffersSlotsThatMovedAgain: a slot moved after the copy was made. By the copy another
// region owns the slot. Its order is later than every order that any region has seen. So no region
// skips the order, and the epochs of its instances are the greatest.
func TestRecoverOffersSlotsThatMovedAgain(t *testing.T) {
	const key = "default/api/web/0"
	f := newFederation()
	s := f.start(t, "g1", shortLeases)
	s.joined("seoul").leave()
	s.waitRegion("seoul", nusav1.RegionState_REGION_STATE_DISCONNECTED)
	jakarta := s.joined("jakarta")
	s.submit(testJob("api", 4))
	jakarta.waitSlot(key, accepted)
	jakarta.leave()
	s.stop()
	old := f.copied(t)
	f.moveSlots(t, nil)
	s = f.start(t, "g1", shortLeases)
	seoul := s.joined("seoul")
	moved := seoul.waitSlot(key, accepted)
	seoul.mu.Lock()
	revision, id, term := seoul.slots[key].GetRevision(), seoul.welcome.GetFederationId(), seoul.welcome.GetLeadershipTerm()
	seoul.mu.Unlock()
	seoul.leave()
	s.stop()

	f.mem = old
	s = f.start(t, "g1", shortLeases)
	hello := func(name string) *nusav1.RegionHello {
		h := helloOf(name, 2)
		h.FederationId, h.StoreRevision, h.LeadershipTerm = id, revision, term
		return h
	}
	refused := s.join(hello("seoul"))
	refused.wait("refusal", func() bool { return refused.refused != nil })
	if _, err := nusav1.NewSystemClient(s.conn).Recover(t.Context(), &nusav1.RecoverRequest{FederationId: id}); err != nil {
		t.Fatal(err)
	}
	waitInfo(t, s, "active, and waiting for the regions", confirming("jakarta, seoul"))
	jakarta = s.join(hello("jakarta"))
	got := jakarta.waitSlot(key, accepted)
	jakarta.mu.Lock()
	again := jakarta.slots[key].GetRevision()
	jakarta.mu.Unlock()
	if got.GetGeneration() <= moved.GetGeneration() || got.GetGeneration() <= revision || again <= revision || got.GetTo() != 4 {
		t.Errorf("jakarta is ordered %v, revision %d; seoul knows %v, revision %d", got, again, moved, revision)
	}
	seoul = s.join(hello("seoul"))
	seoul.wait("set without slots", func() bool { return seoul.fullSets == 1 && len(seoul.slots) == 0 })
}

// confirming checks that a server is active and waits for regions to confirm what they run.
func confirming(regions string) func(*nusav1.InfoResponse) bool {
	return func(i *nusav1.InfoResponse) bool {
		return i.GetLeader() && len(i.GetAlarms()) == 1 && strings.Contains(i.GetAlarms()[0], "have confirmed what they run: "+regions+";")
	}
}

// copied returns a store with the records of the federation, which is at a lower revision.
func (f *federation) copied(t *testing.T) *store.Memory {
	t.Helper()
	c, out := f.mem.Client(), store.NewMemory()
	defer c.Close()
	to := out.Client()
	defer to.Close()
	if _, err := c.List(t.Context(), "", func(kv store.KV) error {
		if strings.HasPrefix(kv.Key, state.ElectionPrefix) {
			return nil
		}
		_, err := to.Txn(t.Context(), nil, []store.Op{store.Put(kv.Key, kv.Value)})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestEmptiedStore: a server does not give an emptied store a new identity. Otherwise its regions
// would get empty sets and stop all work.
func TestEmptiedStore(t *testing.T) {
	f := newFederation()
	dir := t.TempDir()
	s := f.start(t, "g1", func(c *Config) { c.DataDir = dir })
	id, _ := f.identity(t)
	s.stop()
	f.mem = store.NewMemory()
	client := f.mem.Client()
	defer client.Close()
	err := Run(t.Context(), Config{
		Name: "g1", GRPCAddr: "g1:7600", HTTPAddr: "-", DataDir: dir, Store: client, Net: f.pipes.net(), Logger: slog.New(slog.DiscardHandler),
	})
	if !errors.Is(err, state.ErrForeignStore) || !strings.Contains(err.Error(), id) {
		t.Errorf("started with an emptied store: %v", err)
	}
	if _, known := f.identity(t); known {
		t.Error("the emptied store has an identity now")
	}
}

// identity returns the id of the federation in the store.
func (f *federation) identity(t *testing.T) (id string, known bool) {
	t.Helper()
	c := f.mem.Client()
	defer c.Close()
	kv, ok, _, err := c.Get(t.Context(), state.ClusterKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(kv.Value), ok
}

// testRecover: a region that knows a later revision than the store shows that the store was
// restored from an old copy. Until an operator has recovered the store, no server orders or stores
// anything, also not the next active one. Afterwards all generations are greater than those that
// the region knows, also of slots that were offered before.
func testRecover(t *testing.T, f *federation, change ...func(*Config)) {
	const known, knownTerm, absent = 1 << 30, 70, 1<<30 + 1<<20
	first := f.start(t, "g1", change...)
	alpha := first.joined("alpha")
	first.submit(testJob("api", 1))
	slot := alpha.waitSlot("default/api/web/0", accepted)
	id := alpha.welcome.GetFederationId()
	ahead := func() *nusav1.RegionHello {
		h := helloOf("beta", 1)
		h.FederationId, h.StoreRevision, h.LeadershipTerm = id, known, &nusav1.LeadershipTerm{Number: knownTerm, Nonce: "lost"}
		return h
	}
	refused := func(s *testServer, h *nusav1.RegionHello) {
		t.Helper()
		r := s.join(h)
		r.wait("refusal", func() bool { return r.refused != nil })
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.refused.GetPermanent() || !r.refused.GetTellWork() || !strings.Contains(r.refused.GetMessage(), "nusa server recover") || r.fullSets > 0 {
			t.Errorf("refusal %v, %d sets", r.refused, r.fullSets)
		}
	}
	refused(first, ahead())
	alpha.wait("end of the other session", func() bool { return alpha.err != nil })
	if _, err := first.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: testJob("more", 1)}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a submit while the store is old: %v", err)
	}
	first.stop()
	second := f.start(t, "g2", change...)
	standby := f.start(t, "g3", change...)
	waitInfo(t, second, "active with an alarm", func(i *nusav1.InfoResponse) bool {
		return i.GetLeader() && i.GetFederationId() == id && len(i.GetAlarms()) == 1 && strings.Contains(i.GetAlarms()[0], "recover")
	})
	refused(second, helloOf("alpha", 1))
	refused(standby, ahead())

	system := nusav1.NewSystemClient(standby.conn)
	tells := helloOf("alpha", 1) // the server asked the region what it runs
	tells.Work = []*nusav1.RegionWork{
		{Namespace: "default", Job: "api", Group: "web", To: 1, JobVersion: 1}, {Namespace: "default", Job: "later", Group: "web", To: 2, JobVersion: 1},
	}
	refused(second, tells)
	would, err := system.Recover(t.Context(), &nusav1.RecoverRequest{DryRun: true})
	if err != nil || len(would.GetLost()) != 1 || would.GetLost()[0].GetJob() != "later" || would.GetLost()[0].GetInstances() != 2 || !slices.Equal(would.GetSilent(), []string{"beta"}) || len(would.GetStarts()) > 0 {
		t.Errorf("a recovery would change %v, %v", would, err)
	}
	if _, err := system.Recover(t.Context(), &nusav1.RecoverRequest{FederationId: "other"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("recovery of another federation: %v", err)
	}
	resp, err := system.Recover(t.Context(), &nusav1.RecoverRequest{FederationId: id})
	if err != nil || resp.GetRevision() <= known {
		t.Fatalf("recovery: %v, %v", resp, err)
	}
	active := standby // the other server resigns
	waitInfo(t, active, "active, and waiting for the regions", confirming("alpha, beta"))
	confirms := func(r *fakeRegion) { r.hello.FeatureLevel = region.ConfirmLevel }
	again := active.joined("alpha", confirms)
	if got := again.waitSlot("default/api/web/0", accepted); got.GetGeneration() <= absent || got.GetTo() != slot.GetTo() {
		t.Errorf("slot %v became %v: its generation is not greater than what an absent region may know, %d", slot, got, absent)
	}
	active.submit(testJob("more", 1))
	if got := again.waitSlot("default/more/web/0", accepted); got.GetGeneration() <= known {
		t.Errorf("generation %d, the region knows %d", got.GetGeneration(), known)
	}
	beta := active.join(ahead(), confirms)
	beta.wait("welcome", func() bool { return beta.welcome != nil })
	if beta.welcome.GetLeadershipTerm().GetNumber() <= knownTerm || beta.welcome.GetStoreRevision() <= known {
		t.Errorf("welcome %v", beta.welcome)
	}
	requests := uint64(0)
	waitInfo(t, active, "active without an alarm", func(i *nusav1.InfoResponse) bool {
		requests++
		for _, r := range []*fakeRegion{again, beta} {
			r.askLease(requests, func(q *nusav1.LeaseRequest) { q.Confirmed = true })
		}
		return i.GetLeader() && len(i.GetAlarms()) == 0
	})
	if _, err := nusav1.NewSystemClient(active.conn).Recover(t.Context(), &nusav1.RecoverRequest{FederationId: id}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a second recovery: %v", err)
	}
}
