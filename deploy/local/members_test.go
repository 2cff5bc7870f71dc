//go:build integration

package local_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// old gives the data directory of a process another name, as if it were that of another machine.
func (j *joined) old(name string) {
	j.Helper()
	if err := os.Rename(filepath.Join(j.dir, name), filepath.Join(j.dir, name+"-old")); err != nil {
		j.Fatal(err)
	}
	if err := os.Rename(filepath.Join(j.dir, name+".log"), filepath.Join(j.dir, name+"-old.log")); err != nil {
		j.Fatal(err)
	}
}

// back gives a process its old data directory again.
func (j *joined) back(name string) {
	j.Helper()
	if err := os.RemoveAll(filepath.Join(j.dir, name)); err != nil {
		j.Fatal(err)
	}
	if err := os.Rename(filepath.Join(j.dir, name+"-old"), filepath.Join(j.dir, name)); err != nil {
		j.Fatal(err)
	}
	if err := os.Rename(filepath.Join(j.dir, name+".log"), filepath.Join(j.dir, name+"-new.log")); err != nil {
		j.Fatal(err)
	}
}

// TestReplaceMachines: a machine that died is removed, and a new one of the same name joins with a new
// token at once. The old machine is refused until it joins again. The same for a regional server.
func TestReplaceMachines(t *testing.T) {
	j, _, _ := startJoined(t)
	killServer := j.server("s1", 10, "NUSA_JOIN_TOKEN="+j.token("--role", "server"))
	j.until("connected", "region", "list")
	agentToken := j.token("--uses", "5")
	kill := j.agent("n1", []string{"NUSA_JOIN_TOKEN=" + agentToken})
	j.until("ready", "node", "list")

	kill()
	j.old("n1")
	killSecond := j.agent("n1", []string{"NUSA_JOIN_TOKEN=" + agentToken})
	j.logged("n1", "if that machine is gone run 'nusa node remove n1'")
	killSecond()
	j.until("lost", "node", "list")
	j.until("is removed", "node", "remove", "n1")
	killSecond = j.agent("n1", []string{"NUSA_JOIN_TOKEN=" + agentToken})
	j.until("ready", "node", "list")
	if out, err := j.nusa("node", "members"); err != nil || !strings.Contains(out, "joined, removed") {
		t.Errorf("%v, %s", err, out)
	}

	// The old machine comes back, without its token and with it.
	killSecond()
	j.back("n1")
	kill = j.agent("n1", nil)
	j.logged("s1", "agent n1 of region jakarta was removed")
	kill()
	j.until("lost", "node", "list")
	j.until("is removed", "node", "remove", "n1")
	j.agent("n1", []string{"NUSA_JOIN_TOKEN=" + agentToken})
	j.until("ready", "node", "list")

	if out, err := j.nusa("region", "server", "remove", "jakarta/s1"); err == nil || !strings.Contains(out, "server s1 of region jakarta lives") {
		t.Errorf("a server that lives is removed: %v, %s", err, out)
	}
	killServer()
	j.old("s1")
	serverToken := "NUSA_JOIN_TOKEN=" + j.token("--role", "server", "--uses", "2")
	killServer = j.server("s1", 10, serverToken)
	j.logged("s1", "if that machine is gone run 'nusa region server remove jakarta/s1'")
	killServer()
	j.until("s1 is removed", "region", "server", "remove", "jakarta/s1")
	killServer = j.server("s1", 10, serverToken)
	j.logged("s1", "this program has joined")
	killServer()
	j.back("s1")
	j.server("s1", 10)
	j.logged("g1", "regional server s1 of region jakarta was removed")
}
