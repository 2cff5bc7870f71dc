//go:build integration

package local_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	"github.com/nusa-scheduler/nusa/internal/freeport"
)

// joined is a federation of processes that join by token.
type joined struct {
	*testing.T
	dir, bin string
	port     int
}

// start starts a role, which ends with the test. The returned function kills it with -9.
func (j *joined) start(name string, env []string, args ...string) (kill func()) {
	j.Helper()
	log, err := os.OpenFile(filepath.Join(j.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		j.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(j.bin, append(args, "--data-dir", filepath.Join(j.dir, name), "--name", name)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), log, log
	if err := cmd.Start(); err != nil {
		j.Fatal(err)
	}
	ended := false
	end := func(s syscall.Signal) {
		if !ended {
			ended = true
			_ = cmd.Process.Signal(s)
			_ = cmd.Wait()
		}
	}
	j.Cleanup(func() { end(syscall.SIGTERM) })
	return func() { end(syscall.SIGKILL) }
}

func (j *joined) addr(offset int) string { return fmt.Sprintf("127.0.0.1:%d", j.port+offset) }

// nusa runs a command of the client as the operator of the global server's machine.
func (j *joined) nusa(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(j.Context(), patience)
	defer cancel()
	if !slices.Contains(args, "--addr") {
		args = append(args, "--addr", j.addr(0))
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, j.bin, append(args, "--identity", filepath.Join(j.dir, "g1", "operator"))...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// eventually calls want, with pauses, until it returns nil.
func (j *joined) eventually(pause time.Duration, want func() error) {
	j.Helper()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		err := want()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			j.Fatal(err)
		}
	}
}

// until waits until the output of a command has a text.
func (j *joined) until(want string, args ...string) {
	j.Helper()
	j.eventually(200*time.Millisecond, func() error {
		out, err := j.nusa(args...)
		if err == nil && strings.Contains(out, want) {
			return nil
		}
		return fmt.Errorf("nusa %s: %v, %s, want %q", strings.Join(args, " "), err, out, want)
	})
}

// logged waits until the log of a process has a text.
func (j *joined) logged(name, want string) {
	j.Helper()
	j.eventually(50*time.Millisecond, func() error {
		text, err := os.ReadFile(filepath.Join(j.dir, name+".log"))
		if err != nil || !strings.Contains(string(text), want) {
			return fmt.Errorf("the log of %s does not have %q: %v\n%s", name, want, err, text)
		}
		return nil
	})
}

// token makes a token and returns its text.
func (j *joined) token(args ...string) string {
	j.Helper()
	file := filepath.Join(j.TempDir(), "token")
	if out, err := j.nusa(append([]string{"token", "create", "--region", "jakarta", "--out", file}, args...)...); err != nil {
		j.Fatal(out, err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		j.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func (j *joined) server(name string, at int, env ...string) (kill func()) {
	return j.start(name, env, "regional", "--region", "jakarta", "--fast-raft", "--bootstrap-expect", "1", "--cert-ttl", "20s",
		"--global", j.addr(0), "--grpc-addr", j.addr(at), "--raft-addr", j.addr(at+1), "--gossip-addr", j.addr(at+2), "--probe-addr", j.addr(at+3), "--http-addr", "-")
}

func (j *joined) agent(name string, env []string, flags ...string) (kill func()) {
	return j.start(name, env, append([]string{"agent", "--region", "jakarta", "--servers", j.addr(10), "--http-addr", "-", "--leave-on-shutdown"}, flags...)...)
}

// startJoined starts a global server that issues identities. It returns a function that starts the
// server again, and one that kills it.
func startJoined(t *testing.T) (j *joined, global, killGlobal func()) {
	t.Helper()
	bin, err := filepath.Abs("../../bin/nusa")
	if err != nil {
		t.Fatal(err)
	}
	j = &joined{T: t, dir: t.TempDir(), bin: bin, port: freeport.Reserve(t, ports)}
	leftover.Nothing(t, j.dir)
	var latest func()
	global = func() {
		latest = j.start("g1", nil, "global", "--secure", "--grpc-addr", j.addr(0), "--http-addr", "-", "--etcd-peer-addr", j.addr(3))
	}
	global()
	j.until("g1", "server", "list")
	return j, global, func() { latest() }
}

// TestJoinWithTokens: processes without any identity join by token, and run encrypted. Wrong
// tokens are refused. Certificates are renewed, also after their end, and without the global tier.
func TestJoinWithTokens(t *testing.T) {
	t.Parallel()
	j, global, killGlobal := startJoined(t)
	killServer := j.server("s1", 10, "NUSA_JOIN_TOKEN="+j.token("--role", "server"))
	j.until("connected", "region", "list")

	one := j.token("--role", "agent", "--name", "n?", "--pool", "gpu")
	killFirst := j.agent("n1", []string{"NUSA_JOIN_TOKEN=" + one})
	j.until("ready", "node", "list")
	if out, err := j.nusa("node", "list"); err != nil || !strings.Contains(out, "gpu") {
		t.Errorf("the pool of the token is not in use: %v, %s", err, out)
	}
	for name, c := range map[string]struct{ token, want string }{
		"n2": {one, "is used up"},
		"m1": {j.token("--role", "agent", "--name", "n?"), "is for names like"},
		"n3": {j.token("--role", "server"), "is not known here"},
		"n4": {strings.Replace(one, "nusa1.", "nusa2.", 1), "not a join token"},
		"n5": {j.token("--role", "agent", "--ttl", "1s"), "ended at"},
		"n6": {one[:len(one)-4] + "0000", "not one of the federation that gave the token"},
	} {
		if name == "n5" {
			<-time.After(1100 * time.Millisecond) // the token ends
		}
		j.agent(name, []string{"NUSA_JOIN_TOKEN=" + c.token})
		j.logged(name, c.want)
	}
	for _, name := range []string{"g1", "s1", "n1", "n2"} {
		if text, _ := os.ReadFile(filepath.Join(j.dir, name+".log")); strings.Contains(string(text), strings.Split(one, ".")[2]) {
			t.Errorf("the log of %s has the secret of a token", name)
		}
	}
	revoked := j.token("--role", "agent")
	if out, err := j.nusa("token", "revoke", strings.Split(revoked, ".")[1]); err != nil {
		t.Error(out, err)
	}
	j.agent("n7", []string{"NUSA_JOIN_TOKEN=" + revoked})
	j.logged("n7", "is revoked")

	// A ban ends the session of an agent soon, and survives a restart of the region.
	if out, err := j.nusa("node", "ban", "n1", "--region", "jakarta", "--reason", "stolen"); err != nil {
		t.Fatal(out, err)
	}
	banned := time.Now()
	j.logged("s1", "a connection is closed")
	if took := time.Since(banned); took > 10*time.Second { // a busy machine needs more than the usual two
		t.Errorf("the ban held after %s", took)
	}
	killServer()
	j.server("s1", 10)
	j.logged("s1", "is banned (stolen, since")
	j.until("may connect again", "node", "unban", "n1", "--region", "jakarta") // the region connects again meanwhile
	for _, region := range []string{"", "jakarta"} {                           // the trails of the global tier and of the region
		j.until("stolen", "audit", "list", "--region", region, "--verb", "ban", "--kind", "node", "--name", "n1")
	}
	j.until("ready", "node", "list")

	// An agent stays in the pool of its token.
	killFirst()
	killWrong := j.agent("n1", nil, "--pool", "cpu")
	j.logged("n1", "has joined for pool gpu, and now is in pool cpu")
	killWrong()
	killFirst = j.agent("n1", nil)
	j.until("ready", "node", "list")

	// An agent that was off for longer than its certificate lives comes back without a token, while
	// the global tier is away.
	j.logged("s1", "a certificate is renewed")
	killFirst()
	killGlobal()
	<-time.After(21 * time.Second) // the life of the certificate
	j.agent("n1", nil)
	j.logged("n1", "the certificate has expired: this program asks for the next one")
	global()
	j.until("ready", "node", "list")
	j.until("connected", "region", "list")
}
