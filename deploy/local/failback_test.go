//go:build integration

package local_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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

// matrix of round trips in which tokyo reaches the other region, or not.
func matrix(cut bool) []byte {
	rtt := "80"
	if cut {
		rtt = ""
	}
	return fmt.Appendf(nil, "from,jakarta,tokyo\njakarta,,%s\ntokyo,%s,\n", rtt, rtt)
}

// TestWorkReturnsByItself: tokyo is cut off, and its work moves. After the cut the work returns,
// but not before tokyo has been connected for failback.after.
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
	connect(false)
	var connected time.Time
	f.eventually("tokyo is connected", func(ctx context.Context) error {
		r, err := nusav1.NewRegionsClient(conn).Get(ctx, &nusav1.GetRegionRequest{Name: "tokyo"})
		if err == nil && r.GetState() != nusav1.RegionState_REGION_STATE_CONNECTED {
			err = fmt.Errorf("state %s", r.GetState())
		}
		connected = time.Now()
		return err
	})
	runsIn("tokyo")
	if took := time.Since(connected); took < 14*time.Second {
		t.Errorf("the work returned %s after the reconnect", took)
	}
}
