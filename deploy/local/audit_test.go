//go:build integration

package local_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTrailsSurviveAnIslandAndKills: a region makes entries while the global tier is away, and its master
// is killed. Once both are back, the global tier stores all entries, also through a kill of its own. What
// is stored is sound without the region.
func TestTrailsSurviveAnIslandAndKills(t *testing.T) {
	t.Parallel()
	j, global, killGlobal := startJoined(t)
	server := func(env ...string) (kill func()) { return j.server("s1", 10, env...) }
	killServer := server("NUSA_JOIN_TOKEN=" + j.token("--role", "server"))
	j.until("connected", "region", "list")
	act := func(n int) {
		for i := range n {
			file := filepath.Join(t.TempDir(), "token")
			j.eventually(100*time.Millisecond, func() error {
				out, err := j.nusa("token", "create", "--role", "agent", "--region", "jakarta", "--name", fmt.Sprint("n", i), "--out", file, "--addr", j.addr(10))
				if err != nil {
					err = fmt.Errorf("%s: %w", out, err)
				}
				return err
			})
		}
	}
	act(3)
	stored := []string{"audit", "list", "--region", "jakarta", "--stored", "--kind", "join token", "--limit", "1000"}
	count := func(want int) {
		j.Helper()
		j.eventually(200*time.Millisecond, func() error {
			out, err := j.nusa(stored...)
			if n := strings.Count(out, "create"); err != nil || n != want {
				return fmt.Errorf("%d entries are stored, want %d: %v\n%s", n, want, err, out)
			}
			return nil
		})
	}
	count(3)
	killGlobal()
	act(5)
	killServer()
	killServer = server()
	act(2)
	global()
	count(10)
	killGlobal()
	act(1)
	global()
	count(11)
	if out, err := j.nusa("audit", "verify", "--region", "jakarta", "--stored"); err != nil || !strings.Contains(out, "sound") {
		t.Errorf("%v, %s", err, out)
	}
	if out, err := j.nusa("operator", "reconcile", "--now"); err != nil || strings.Contains(out, "WHY") {
		t.Errorf("%v, %s", err, out)
	}
	killServer()
	j.until("sound", "audit", "verify", "--region", "jakarta", "--stored")
}
