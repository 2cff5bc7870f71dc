//go:build integration

package local_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/freeport"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// returningJob has two instances in tokyo, which move and return by themselves.
const returningJob = `
name: returning
type: service
regions:
  prefer: [{name: tokyo, weight: 90}]
  divide: best
groups:
  web:
    count: 2
    disconnect:
      region: {after: 8s, failback: {mode: auto, after: 15s}}
      reconcile: keep_replacement
    tasks:
      loop:
        driver: process
        config: {command: /bin/sh, args: ["-c", "exec sleep 100000"]}
        resources: {cpu: 10m, memory: 16MiB}
        kill_timeout: 1s
`

// heldJob runs only in tokyo, where an operator scales it during the cut.
const heldJob = `
name: held
type: service
regions: {allow: [{name: tokyo}]}
groups:
  web:
    count: 2
    tasks:
      loop:
        driver: process
        config: {command: /bin/sh, args: ["-c", "exec sleep 100000"]}
        resources: {cpu: 10m, memory: 16MiB}
        kill_timeout: 1s
`

// nusa runs a command of the CLI, and returns what it prints.
func nusa(t *testing.T, bin, addr string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, bin, append(args, "--addr", addr)...).CombinedOutput()
	if err != nil {
		t.Fatalf("nusa %v: %v: %s", args, err, out)
	}
	return string(out)
}

// matrix of round trips in which tokyo reaches the other region, or not.
func matrix(cut bool) []byte {
	rtt := "80"
	if cut {
		rtt = ""
	}
	return fmt.Appendf(nil, "from,jakarta,tokyo\njakarta,,%s\ntokyo,%s,\n", rtt, rtt)
}

// TestWorkReturnsByItself: tokyo is cut off, and its work moves. After the cut the work returns,
// but not before tokyo has been connected for failback.after. Another job cannot move. An operator scales
// it at tokyo's server during the cut. That stays after the cut, until it is cleared over the global tier.
func TestWorkReturnsByItself(t *testing.T) {
	t.Parallel()
	bin, err := filepath.Abs("../../bin/nusa")
	if err != nil {
		t.Fatal(err)
	}
	wan := filepath.Join(t.TempDir(), "wan.csv")
	connect := func(cut bool) {
		t.Helper()
		if err := os.WriteFile(wan, matrix(cut), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	connect(false)
	port := freeport.Reserve(t, ports)
	startDev(t, bin, port, 2, "--insecure", "--agents", "1", "--wan", wan)
	f := &federation{t: t}
	conn := f.dial(port)
	f.submit(conn, returningJob)
	f.submit(conn, heldJob)
	counts := func(running, held int32) {
		t.Helper()
		f.eventually(fmt.Sprintf("%d run and %d are held", running, held), func(ctx context.Context) error {
			j, err := nusav1.NewJobsClient(conn).Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "held"}})
			c := j.GetStatus().GetGroups()["web"].GetCounts()
			if err == nil && (c.GetRunning() != running || c.GetHeld() != held || c.GetPending()+c.GetLost() > 0) {
				err = fmt.Errorf("%v", j.GetStatus())
			}
			return err
		})
	}
	counts(2, 0)
	r, err := nusav1.NewRegionsClient(conn).Get(t.Context(), &nusav1.GetRegionRequest{Name: "tokyo"})
	if err != nil || len(r.GetServers()) == 0 {
		t.Fatalf("the servers of tokyo: %v, %v", r, err)
	}
	island := r.GetServers()[0].GetAddress()
	runsIn := func(name string) {
		t.Helper()
		f.eventually("both instances run in "+name, func(ctx context.Context) error {
			j, err := nusav1.NewJobsClient(conn).Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "returning"}})
			if err != nil {
				return err
			}
			web := j.GetStatus().GetGroups()["web"]
			for _, s := range web.GetSlots() {
				if s.GetRegion() != name || s.GetVacant() {
					return fmt.Errorf("%s has instances %d to %d", s.GetRegion(), s.GetFrom(), s.GetTo()-1)
				}
			}
			if n := web.GetCounts().GetRunning(); n != 2 {
				return fmt.Errorf("%d run", n)
			}
			return nil
		})
	}
	runsIn("tokyo")
	connect(true)
	runsIn("jakarta")
	if out := nusa(t, bin, island, "job", "scale", "held", "1", "--override", "--reason", "the site is hot"); !strings.Contains(out, "1 instance held") {
		t.Errorf("scaled at tokyo: %s", out)
	}
	connect(false)
	separated := time.Now() // the latest time at which tokyo was not connected yet
	f.eventually("tokyo is connected", func(ctx context.Context) error {
		asked := time.Now()
		r, err := nusav1.NewRegionsClient(conn).Get(ctx, &nusav1.GetRegionRequest{Name: "tokyo"})
		if err == nil && r.GetState() != nusav1.RegionState_REGION_STATE_CONNECTED {
			err, separated = fmt.Errorf("state %s", r.GetState()), asked
		}
		return err
	})
	runsIn("tokyo")
	if took := time.Since(separated); took < 15*time.Second {
		t.Errorf("the work returned %s after tokyo was still separated", took)
	}
	counts(1, 1)
	global := fmt.Sprintf("127.0.0.1:%d", port)
	if out := nusa(t, bin, global, "job", "override", "list"); !strings.Contains(out, "web scaled to 1: the site is hot") {
		t.Errorf("overrides: %s", out)
	}
	nusa(t, bin, global, "job", "override", "clear", "held", "--region", "tokyo")
	counts(2, 0)
}
