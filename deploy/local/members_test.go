//go:build integration

package local_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
	t.Parallel()
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

// TestRegisteredNodes: 2,000 nodes are registered from one file before they appear. Then an agent joins
// by its registered name alone, with the hash of the root. Others are refused, and so is an agent for
// which the condition of the policy does not hold. A banned region is cut off, and comes back.
func TestRegisteredNodes(t *testing.T) {
	t.Parallel()
	j, _, _ := startJoined(t)
	j.server("s1", 10, "NUSA_JOIN_TOKEN="+j.token("--role", "server"))
	j.until("connected", "region", "list")
	csv := strings.Builder{}
	csv.WriteString("name,address,pool,labels,description,priority\n")
	for i := range 2000 {
		fmt.Fprintf(&csv, "n%04d,127.0.0.1,gpu,rack=r%d,\"node %d, of many\",%d\n", i, i%40, i, i%100)
	}
	file := filepath.Join(j.dir, "nodes.csv")
	if err := os.WriteFile(file, []byte(csv.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if out, err := j.nusa("node", "register", "-f", file, "--region", "jakarta"); err != nil || !strings.Contains(out, "2000 registered now") {
		t.Fatalf("%v, %s", err, out)
	}
	t.Logf("2,000 nodes were registered within %s", time.Since(began))
	if out, err := j.nusa("node", "members", "--region", "jakarta"); err != nil || strings.Count(out, " registered ") != 2000 {
		t.Errorf("%v, %d nodes are registered", err, strings.Count(out, " registered "))
	}
	out, err := j.nusa("region", "join-policy", "jakarta", "--set", "registered")
	_, root, found := strings.Cut(out, "root hash: ")
	if err != nil || !found {
		t.Fatalf("%v, %s", err, out)
	}
	hash := []string{"--root-hash", strings.TrimSpace(root)}
	j.agent("n0007", nil, hash...)
	j.until("ready", "node", "list")
	if out, err := j.nusa("node", "status", "n0007"); err != nil || !strings.Contains(out, "gpu") || !strings.Contains(out, "rack=r7") || !strings.Contains(out, "node 7, of many") {
		t.Errorf("the node is not as registered: %v, %s", err, out)
	}
	j.agent("stranger", nil, hash...)
	j.logged("stranger", "is not registered, and the join policy is registered")
	j.agent("n0008", nil, "--root-hash", strings.Repeat("ab", 32))
	j.logged("n0008", "is not one of the federation that gave the token, or not the one of --root-hash")

	j.until("require:   node.memory_mib > 1000000000", "region", "join-policy", "jakarta", "--require", "node.memory_mib > 1000000000")
	j.agent("n0009", nil, hash...)
	j.logged("n0009", "requires node.memory_mib > 1000000000, which does not hold for node n0009")
	j.until("require:   -", "region", "join-policy", "jakarta", "--require", "")
	j.until("n0009", "node", "list")

	// A ban of the region ends its session soon. The region goes on as an island.
	if out, err := j.nusa("region", "ban", "jakarta", "--reason", "stolen"); err != nil {
		t.Fatal(out, err)
	}
	banned := time.Now()
	j.logged("g1", "a connection is closed")
	if took := time.Since(banned); took > 10*time.Second { // a busy machine needs more than the usual two
		t.Errorf("the ban held after %s", took)
	}
	j.logged("g1", "regional server s1 of region jakarta is banned (its region: stolen, since")
	j.until("disconnected", "region", "list")
	j.until("n0007", "node", "list", "--addr", j.addr(10))
	if out, err := j.nusa("region", "unban", "jakarta"); err != nil || !strings.Contains(out, "may connect again") {
		t.Fatal(out, err)
	}
	j.until(" connected", "region", "list")
}
