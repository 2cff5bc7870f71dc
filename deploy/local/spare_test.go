//go:build integration

package local_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// provisioner is a small provisioning service, and an upgrade controller. It starts agents as processes. It
// refuses the first request of each key after it has done the work, as if the response were lost.
type provisioner struct {
	secret webhook.Secret
	start  func(n int) error

	mu sync.Mutex
	// seen counts the requests by key.
	seen   map[string]int
	agents int
	// ready has the hosts of the callback.
	ready  []string
	faults []string
}

func (p *provisioner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	id := r.Header.Get("Webhook-Id")
	at, _ := strconv.ParseInt(r.Header.Get("Webhook-Timestamp"), 10, 64)
	var body struct {
		Type, Key, Pool string
		Count           int
		Hosts           []struct{ Name, Reservation string }
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := json.Unmarshal(text, &body); err != nil || r.Header.Get("Webhook-Signature") != webhook.Sign([]webhook.Secret{p.secret}, id, time.Unix(at, 0), text) {
		p.faults = append(p.faults, fmt.Sprintf("%s: a wrong body or signature: %v", r.URL.Path, err))
		return
	}
	p.seen[id]++
	if p.seen[id] > 1 {
		return // the work of the key is done
	}
	switch body.Type {
	case "nusa.spare.provision":
		for range body.Count {
			p.agents++
			if err := p.start(p.agents); err != nil {
				p.faults = append(p.faults, err.Error())
			}
		}
	case "nusa.spare.prepared":
		for _, h := range body.Hosts {
			p.ready = append(p.ready, h.Name)
		}
	}
	w.WriteHeader(http.StatusBadGateway)
}

// TestSpareHosts: a pool has one host, and a spare needs three. A provisioning service starts real agents,
// which join. The upgrade controller learns of all three, and the release gives them back.
func TestSpareHosts(t *testing.T) {
	t.Parallel()
	bin, err := filepath.Abs("../../bin/nusa")
	if err != nil {
		t.Fatal(err)
	}
	dir, port := t.TempDir(), freeport.Reserve(t, ports)
	leftover.Nothing(t, dir)
	at := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", port+n) }
	begin := func(name, role string, args ...string) error {
		s := &report.Server{Name: name, Exe: bin, Log: filepath.Join(dir, name+".log"), Args: append([]string{role, "--name", name, "--data-dir", filepath.Join(dir, name)}, args...)}
		if err := s.Start(); err != nil {
			return err
		}
		t.Cleanup(s.Stop)
		return nil
	}
	agent := func(n int) error {
		tasks := port + 200 + 10*n
		return begin(fmt.Sprintf("bm-%d", n), "agent", "--region", "jakarta", "--servers", at(10), "--http-addr", "-", "--pool", "spare", "--incus", "off", "--docker-host", "off",
			"--port-min", strconv.Itoa(tasks), "--port-max", strconv.Itoa(tasks+8), "--shared-machine", "here", "--share", "4")
	}
	p := &provisioner{secret: webhook.NewSecret(), seen: map[string]int{}, start: agent}
	srv := httptest.NewServer(p)
	t.Cleanup(srv.Close)
	if err := begin("global", "global", "--grpc-addr", at(0), "--http-addr", "-", "--etcd-peer-addr", at(1), "--webhook-allow-http", "--webhook-allow-private", "127.0.0.0/8"); err != nil {
		t.Fatal(err)
	}
	err = begin("server", "regional", "--region", "jakarta", "--location", "-6.2,106.8", "--grpc-addr", at(10), "--raft-addr", at(11), "--gossip-addr", at(12), "--probe-addr", at(13), "--http-addr", "-", "--global", at(0))
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.agents = 1
	err = agent(1)
	p.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	f := &federation{t: t, port: port, dir: dir}
	spares, nodes := nusav1.NewSparesClient(f.dial(port)), nusav1.NewNodesClient(f.dial(port))
	f.eventually("a host is ready", func(ctx context.Context) error {
		list, err := nodes.List(ctx, &nusav1.ListNodesRequest{})
		if err == nil && (len(list.GetNodes()) != 1 || list.GetNodes()[0].GetState() != nusav1.NodeState_NODE_STATE_READY) {
			err = fmt.Errorf("nodes %v", list.GetNodes())
		}
		return err
	})
	_, err = spares.SetProvisioner(t.Context(), &nusav1.SetProvisionerRequest{Secret: p.secret.Reveal(), Provisioner: &nusav1.Provisioner{
		Name: "lab", Kind: &nusav1.Provisioner_Webhook{Webhook: &nusav1.WebhookProvisioner{Url: srv.URL + "/hosts"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	made, err := spares.Prepare(t.Context(), &nusav1.PrepareSpareRequest{Pool: "spare", Count: 3, Provisioner: "lab", CallbackUrl: srv.URL + "/ready", CallbackSecret: p.secret.Reveal()})
	if err != nil {
		t.Fatal(err)
	}
	id := made.GetId()
	awaitState := func(want nusav1.SpareState) (x *nusav1.Spare) {
		f.eventually(want.String(), func(ctx context.Context) (err error) {
			x, err = spares.Get(ctx, &nusav1.GetSpareRequest{Id: id})
			if err == nil && x.GetState() != want {
				err = fmt.Errorf("%s %s, %s", x.GetState(), x.GetHosts(), x.GetMessage())
			}
			return err
		})
		return x
	}
	x := awaitState(nusav1.SpareState_SPARE_STATE_READY)
	p.mu.Lock()
	slices.Sort(p.ready)
	if got := strings.Join(p.ready, " "); got != "bm-1 bm-2 bm-3" || p.agents != 3 || len(p.faults) > 0 || p.seen[id+"-ask-1"] != 2 || p.seen[id+"-notify"] != 2 || len(p.seen) != 2 {
		t.Errorf("the controller got %q; %d agents, requests %v, faults %v; spare %v", got, p.agents, p.seen, p.faults, x)
	}
	p.mu.Unlock()
	if _, err := spares.Release(t.Context(), &nusav1.ReleaseSpareRequest{Id: id}); err != nil {
		t.Fatal(err)
	}
	awaitState(nusav1.SpareState_SPARE_STATE_RELEASED)
	again, err := spares.Prepare(t.Context(), &nusav1.PrepareSpareRequest{Pool: "spare", Count: 3})
	if err != nil {
		t.Fatal(err)
	}
	id = again.GetId()
	awaitState(nusav1.SpareState_SPARE_STATE_READY) // all hosts are free again
}

// spares gives the secrets of provisioners and of a callback to the server, and runs the commands about
// spares. Only the store has the secrets.
func (c *canaries) spares() {
	c.Helper()
	server := []string{"--addr", c.addr(0), "--identity", filepath.Join(c.dir, "g1", "operator")}
	given := func(secret string) string {
		file := filepath.Join(c.TempDir(), "secret")
		if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
			c.Fatal(err)
		}
		return file
	}
	hook, callback := webhook.NewSecret().Reveal(), webhook.NewSecret().Reveal()
	const token = "canary-of-a-pipeline-8d20"
	c.addWebhook("the secret of a provisioner", hook)
	c.addWebhook("the secret of a callback", callback)
	c.list = append(c.list, canary{"the token of a pipeline", [][]byte{[]byte(hex.EncodeToString([]byte(token))), []byte(base64.StdEncoding.EncodeToString([]byte(token))), []byte(token)}, storeFiles(c)})
	for _, args := range [][]string{
		{"spare", "provisioner", "set", "lab", "--webhook", "https://lab.invalid/hosts", "--secret-file", given(hook)},
		{"spare", "provisioner", "set", "ci", "--gitlab", "https://git.invalid/trigger", "--secret-file", given(token)},
		{"spare", "prepare", "--detach", "--count", "9", "--provisioner", "ci", "--callback-url", "https://up.invalid/x", "--callback-secret-file", given(callback)},
		{"spare", "provisioner", "list", "-o", "json"}, {"spare", "list", "-o", "json"}, {"audit", "list", "-o", "json"},
	} {
		c.run(true, nil, append(args, server...)...)
	}
}
