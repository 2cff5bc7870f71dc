//go:build integration

package local_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// sleeper is a job whose only task runs until it is stopped.
const sleeper = `name: sleeper
groups:
  main:
    count: 2
    tasks:
      main: {driver: process, config: {command: sleep, args: ["100000"]}}
`

// refused runs a command that must fail with a text.
func (j *joined) refused(want string, args ...string) {
	j.Helper()
	if out, err := j.nusa(args...); err == nil || !strings.Contains(out, want) {
		j.Errorf("nusa %s: %v, %s, want an error with %q", strings.Join(args, " "), err, out, want)
	}
}

// must runs a command that must succeed.
func (j *joined) must(args ...string) {
	j.Helper()
	if out, err := j.nusa(args...); err != nil {
		j.Fatalf("nusa %s: %v, %s", strings.Join(args, " "), err, out)
	}
}

// running returns the running instances of the sleeper as a text, with the starts of their tasks.
func (j *joined) running() (string, error) {
	out, err := j.nusa("alloc", "list", "--job", "sleeper", "-o", "json")
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	list := &nusav1.ListAllocationsResponse{}
	if err := protojson.Unmarshal([]byte(out), list); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	text, n := "", 0
	for _, a := range list.GetAllocations() {
		if a.GetState() == nusav1.AllocState_ALLOC_STATE_RUNNING {
			task := a.GetTasks()["main"]
			text += fmt.Sprintln(a.GetId(), a.GetNodeName(), task.GetStarted().AsTime(), task.GetRestarts())
			n++
		}
	}
	if n != 2 {
		return "", fmt.Errorf("%d instances run: %s", n, out)
	}
	return text, nil
}

// roots returns the names of the roots that a process trusts, and of the one that issued its certificate.
func (j *joined) roots(name string) (all []string, issuer string) {
	j.Helper()
	dir := filepath.Join(j.dir, name, "identity")
	text, err := os.ReadFile(filepath.Join(dir, trust.RootsFile))
	if err != nil {
		j.Fatal(err)
	}
	roots, err := pki.ParseRoots(text)
	if err != nil {
		j.Fatal(err)
	}
	text, err = os.ReadFile(filepath.Join(dir, trust.CertFile))
	if err != nil {
		j.Fatal(err)
	}
	chain, err := pki.ParseCertificates(text, 4)
	if err != nil {
		j.Fatal(err)
	}
	return roots.Fingerprints(), pki.IssuerOf(chain, roots)
}

// TestKeysRotate: the root, the keys of gossip and those of probes are replaced in steps while a job
// runs. Its tasks never restart. A step is refused while a member has not converged. An agent that was
// off in the phase trust comes back by itself in the phase issue.
func TestKeysRotate(t *testing.T) {
	t.Parallel()
	bin, err := filepath.Abs("../../bin/nusa")
	if err != nil {
		t.Fatal(err)
	}
	j := &joined{T: t, dir: t.TempDir(), bin: bin, port: freeport.Reserve(t, ports)}
	leftover.Nothing(t, j.dir)
	global := func() func() {
		return j.start("g1", nil, "global", "--secure", "--grpc-addr", j.addr(0), "--http-addr", "-", "--etcd-peer-addr", j.addr(3), "--cert-ttl", "1h")
	}
	killGlobal := global()
	j.until("g1", "server", "list")
	servers := j.token("--role", "server", "--uses", "2")
	j.server("s1", 10, "NUSA_JOIN_TOKEN="+servers)
	j.until("connected", "region", "list")
	j.server("s2", 20, "NUSA_JOIN_TOKEN="+servers, "NUSA_JOIN="+j.addr(12))
	agents := j.token("--role", "agent", "--uses", "5")
	j.agent("n1", []string{"NUSA_JOIN_TOKEN=" + agents})
	j.until("ready", "node", "list")
	job := filepath.Join(t.TempDir(), "sleeper.yaml")
	if err := os.WriteFile(job, []byte(sleeper), 0o600); err != nil {
		t.Fatal(err)
	}
	j.must("job", "run", job)
	var before string
	j.eventually(500*time.Millisecond, func() error { before, err = j.running(); return err })
	same := func(when string) {
		t.Helper()
		j.eventually(500*time.Millisecond, func() error {
			now, err := j.running()
			if err == nil && now != before {
				err = fmt.Errorf("%s: the tasks are\n%s, and were\n%s", when, now, before)
			}
			return err
		})
	}
	killLate := j.agent("n2", []string{"NUSA_JOIN_TOKEN=" + agents})
	j.until("n2", "node", "list")

	gossip := func(step string, more ...string) []string {
		return append([]string{"operator", "keys", "gossip", step, "--region", "jakarta"}, more...)
	}
	j.until("servers: 2 have these keys, 0 do not", gossip("status")...)
	for _, name := range []string{"s1", "s2"} {
		if _, err := os.Stat(filepath.Join(j.dir, name, "identity", "gossip.keys")); err != nil {
			t.Error(err)
		}
	}
	for _, ring := range [][]string{{"gossip", "--region", "jakarta"}, {"probe"}} {
		of := func(step string, more ...string) []string {
			return append(append([]string{"operator", "keys", ring[0], step}, ring[1:]...), more...)
		}
		j.must(of("install", "--spread", "3s")...)
		j.refused("would separate them", of("use")...)
		j.until("servers: 2 have these keys, 0 do not", of("status")...)
		j.must(of("use", "--spread", "1s")...)
		j.refused("would separate them", of("remove")...)
		j.until("servers: 2 have these keys, 0 do not", of("status")...)
		j.must(of("remove", "--spread", "1s")...)
		j.until("servers: 2 have these keys, 0 do not", of("status")...)
		same(ring[0])
	}
	out, err := j.nusa("region", "list", "-o", "json")
	if err != nil || strings.Count(out, `"healthy": true`) != 2 {
		t.Errorf("not both servers of the region see each other: %v, %s", err, out)
	}

	ca := func(args ...string) []string { return append([]string{"operator", "keys", "ca"}, args...) }
	first, _ := j.roots("n1")
	j.refused("the phase is steady", ca("rotate", "--phase", "issue")...)
	j.must(ca("rotate", "--phase", "trust", "--spread", "1s")...)
	j.until("members: 5 converged, 0 not", ca("status")...)
	j.must(ca("rotate", "--phase", "rollback", "--spread", "1s")...)
	j.until("members: 5 converged, 0 not", ca("status")...)
	same("after a rollback")

	killLate()
	j.must(ca("rotate", "--phase", "trust", "--spread", "1s")...)
	j.until("members: 4 converged, 1 not", ca("status")...)
	j.refused("agent n2 of region jakarta (does not trust root", ca("rotate", "--phase", "issue")...)
	j.must(ca("rotate", "--phase", "issue", "--force", "--spread", "2s")...)
	j.until("members: 4 converged, 1 not", ca("status")...)
	j.agent("n2", nil) // trusts the earlier root only, and has a certificate of that root
	j.until("members: 5 converged, 0 not", ca("status")...)
	j.agent("n3", []string{"NUSA_JOIN_TOKEN=" + agents}) // the token has the hash of the earlier root
	j.until("n3", "node", "list")
	j.until("members: 6 converged, 0 not", ca("status")...)
	same("in the phase issue")
	killGlobal()
	global()
	j.until("members: 6 converged, 0 not", ca("status")...)
	j.must(ca("rotate", "--phase", "distrust", "--spread", "1s")...)
	j.until("members: 6 converged, 0 not", ca("status")...)
	for _, name := range []string{"g1", "s1", "s2", "n1", "n2", "n3"} {
		if all, issuer := j.roots(name); len(all) != 1 || all[0] == first[0] || issuer != all[0] {
			t.Errorf("%s trusts %v, and its certificate is of %s; the first root was %s", name, all, issuer, first[0])
		}
	}
	same("after the change of the root")
	j.agent("n4", []string{"NUSA_JOIN_TOKEN=" + agents})
	j.logged("n4", "not one of the federation that gave the token")
	j.agent("n5", []string{"NUSA_JOIN_TOKEN=" + j.token("--role", "agent")})
	j.until("n5", "node", "list")
	j.until("distrust, root", "audit", "list", "--kind", "key")
}
