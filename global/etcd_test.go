package global

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	"github.com/nusa-scheduler/nusa/internal/network"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/pkitest"
)

// overEtcd makes a server store its records in etcd on loopback.
func (f *federation) overEtcd(dir string, etcd Etcd) func(*Config) {
	return func(c *Config) {
		c.Store, c.DataDir, c.Etcd = nil, dir, etcd
		pipes, host := c.Net.Dial, network.Host().Dial
		c.Net.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			if strings.HasPrefix(addr, "127.") {
				return host(ctx, addr)
			}
			return pipes(ctx, addr)
		}
	}
}

// TestEtcdRestart: an embedded member keeps everything through a restart, after which it has
// no port for clients any more.
func TestEtcdRestart(t *testing.T) {
	t.Parallel()
	f := newFederation()
	dir := t.TempDir()
	s := f.start(t, "g1", f.overEtcd(dir, Etcd{ClientAddr: "127.0.0.1:0", PeerAddr: "127.0.0.1:0"}))
	r := s.joined("alpha")
	s.submit(testJob("api", 2))
	slot := r.waitSlot("default/api/web/0", accepted)
	r.leave()
	s.stop()
	again := f.start(t, "g1", f.overEtcd(dir, Etcd{PeerAddr: "127.0.0.1:0"}), func(c *Config) {
		ready := c.Ready
		c.Ready = func(a Addresses) {
			if a.EtcdClient != "unix://"+dir+"/etcd/client.sock" {
				t.Errorf("without an address for etcd's clients it serves them at %s", a.EtcdClient)
			}
			ready(a)
		}
	})
	back := again.joined("alpha")
	if got := back.waitSlot("default/api/web/0", accepted); got.GetGeneration() != slot.GetGeneration() || got.GetTo() != 2 {
		t.Errorf("slot %v became %v", slot, got)
	}
	if resp := again.submit(testJob("api", 2)); resp.GetChanged() || resp.GetVersion() != 1 {
		t.Errorf("the same job again: %v", resp)
	}
}

// TestEtcdSuccession: two servers share one etcd. The active one stops, and the
// other continues.
func TestEtcdSuccession(t *testing.T) {
	t.Parallel()
	member := openMember(t, t.TempDir(), "127.0.0.1:0")
	f := newFederation()
	shared := f.overEtcd("", Etcd{Endpoints: []string{"http://" + member.ClientAddr()}})
	first := f.start(t, "g1", shared)
	second := f.start(t, "g2", shared)
	r := second.joined("alpha") // through the standby
	first.submit(testJob("api", 1))
	slot := r.waitSlot("default/api/web/0", accepted)
	first.stop()
	waitActive(t, second)
	next := second.join(helloOf("alpha", 1))
	if got := next.waitSlot("default/api/web/0", accepted); got.GetGeneration() != slot.GetGeneration() {
		t.Errorf("slot %v became %v", slot, got)
	}
	if _, err := second.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "api"}, Purge: true}); err != nil {
		t.Fatal(err)
	}
	next.wait("removal of the slot", func() bool { return len(next.slots) == 0 })
}

func openMember(t *testing.T, dir, addr string) *store.Etcd {
	t.Helper()
	member, err := store.OpenEtcd(t.Context(), store.EtcdConfig{
		Name: "etcd", DataDir: dir, ClientAddr: addr, PeerAddr: "127.0.0.1:0",
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { member.Close() })
	return member
}

// TestServerContinuesWhenEtcdIsBack: without etcd no server is active, and the errors of
// calls say why. When etcd is back, a server becomes active with everything that
// was acknowledged. A server can be stopped at any time.
func TestServerContinuesWhenEtcdIsBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	member := openMember(t, dir, "127.0.0.1:0")
	addr := member.ClientAddr()
	f := newFederation()
	shared := f.overEtcd("", Etcd{Endpoints: []string{addr}})
	first := f.start(t, "g1", shared)
	second := f.start(t, "g2", shared)
	first.submit(testJob("api", 1))
	member.Close()
	waitInfo(t, first, "not active", func(i *nusav1.InfoResponse) bool { return !i.GetLeader() })
	start := time.Now()
	second.stop()
	if took := time.Since(start); took > testWait/2 {
		t.Errorf("a standby without etcd took %s to stop", took)
	}
	openMember(t, dir, addr)
	waitActive(t, first)
	list, err := first.jobs().List(t.Context(), &nusav1.ListJobsRequest{})
	if err != nil || len(list.GetJobs()) != 1 {
		t.Errorf("after etcd came back: %v, %v", list, err)
	}
}

// TestMembersIssueFirst: servers with the root of the federation in files issue their identities before
// their etcd members start, so the members reach each other by TLS.
func TestMembersIssueFirst(t *testing.T) {
	t.Parallel()
	f, root := newFederation(), rootFiles(t, pkitest.New(t).Root)
	port := freeport.Reserve(t, 3)
	var cluster []string
	for i := range 3 {
		cluster = append(cluster, fmt.Sprintf("g%d=127.0.0.1:%d", i, port+i))
	}
	var wg sync.WaitGroup
	for i := range cluster {
		dir := t.TempDir()
		wg.Go(func() {
			f.start(t, fmt.Sprintf("g%d", i), f.overEtcd(dir, Etcd{PeerAddr: fmt.Sprintf("127.0.0.1:%d", port+i), InitialCluster: cluster}), withRoot(root),
				func(c *Config) { c.Secure.Dir = filepath.Join(dir, "identity") })
		})
	}
	wg.Wait()
	for i := range cluster {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/members", port+i))
		if err == nil {
			resp.Body.Close()
			t.Errorf("member %d answers without encryption: %s", i, resp.Status)
		}
	}
}

// TestThreeMembers: three servers each have a member of one etcd, without ports for clients. The active one
// stops with its member. Two members are a quorum and continue.
func TestThreeMembers(t *testing.T) {
	t.Parallel()
	f := newFederation()
	names := []string{"g1", "g2", "g3"}
	peers, cluster := map[string]string{}, []string{}
	port := freeport.Reserve(t, len(names)) // a member has to know the others' ports before any listens
	for i, name := range names {
		peers[name] = fmt.Sprintf("127.0.0.1:%d", port+i)
		cluster = append(cluster, name+"="+peers[name])
	}
	servers := make([]*testServer, len(names))
	var wg sync.WaitGroup
	for i, name := range names { // start the servers together: no server is ready before two are
		dir := t.TempDir()
		wg.Go(func() {
			servers[i] = f.start(t, name, f.overEtcd(dir, Etcd{PeerAddr: peers[name], InitialCluster: cluster}))
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	var active, other *testServer
	for _, s := range servers {
		info, err := nusav1.NewSystemClient(s.conn).Info(t.Context(), &nusav1.InfoRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if info.GetLeader() {
			active = s
		} else {
			other = s
		}
	}
	if active == nil || other == nil {
		t.Fatal("not exactly one of three is active")
	}
	r := other.joined("alpha")
	active.submit(testJob("api", 1))
	r.waitSlot("default/api/web/0", accepted)
	active.stop()
	r.wait("end of its session", func() bool { return r.err != nil })
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		list, err := other.jobs().List(ctx, &nusav1.ListJobsRequest{})
		if err == nil && len(list.GetJobs()) == 1 {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("no server continues: %v", err)
		}
	}
	again := other.join(helloOf("alpha", 1))
	again.waitSlot("default/api/web/0", accepted)
	other.submit(testJob("more", 1))
	again.waitSlot("default/more/web/0", accepted)
}

// TestEtcdCandidacyRemoved: another process with the same name may remove a server's election key.
// The server is then not the active one any more, even if it writes nothing and its etcd lease
// continues.
func TestEtcdCandidacyRemoved(t *testing.T) {
	t.Parallel()
	member := openMember(t, t.TempDir(), "127.0.0.1:0")
	f := newFederation()
	s := f.start(t, "g1", f.overEtcd("", Etcd{Endpoints: []string{member.ClientAddr()}}), func(c *Config) { c.CheckpointInterval = time.Hour })
	r := s.joined("alpha")
	kv, ok, err := member.Leader(t.Context(), state.ElectionPrefix)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if _, err := member.Txn(t.Context(), nil, []store.Op{store.Delete(kv.Key)}); err != nil {
		t.Fatal(err)
	}
	r.wait("end of the session", func() bool { return r.err != nil })
	term := r.welcome.GetLeadershipTerm().GetNumber()
	waitInfo(t, s, "active in the next term", func(i *nusav1.InfoResponse) bool {
		kv, _, _, err := member.Get(t.Context(), "/nusa/v1/leadership")
		rec := new(nusav1.LeadershipRecord)
		return i.GetLeader() && err == nil && state.Decode(kv, rec) == nil && rec.GetTerm().GetNumber() == term+1
	})
}
