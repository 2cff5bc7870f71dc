package brokertest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// patience is how long a broker may take to start.
const patience = 150 * time.Second

// Process is a broker that can be killed and started again with its data.
type Process struct {
	t    testing.TB
	name string
	addr string // that accepts connections once the broker runs
	log  string
	make func() *exec.Cmd
	cmd  *exec.Cmd
}

// Addr returns the address of the broker.
func (p *Process) Addr() string { return p.addr }

// Start starts the broker, and waits until it accepts connections.
func (p *Process) Start() {
	p.t.Helper()
	p.Begin()
	p.Await()
}

// Begin starts the broker.
func (p *Process) Begin() {
	p.t.Helper()
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close()
	p.cmd = p.make()
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// Await waits until the broker accepts connections.
func (p *Process) Await() {
	p.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		conn, err := net.DialTimeout("tcp", p.addr, time.Second)
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(p.log)
			p.t.Fatalf("%s does not accept connections at %s within %s:\n%s", p.name, p.addr, patience, tail(text))
		}
		<-time.After(20 * time.Millisecond)
	}
}

// Kill ends the broker with SIGKILL, and waits until it has ended.
func (p *Process) Kill() {
	if p.cmd == nil {
		return
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	_ = p.cmd.Wait()
	p.cmd = nil
}

func tail(text []byte) string { return string(text[max(0, len(text)-2000):]) }

// find returns the path of a program. The test is skipped if it is not installed.
func find(t testing.TB, what string, places ...string) string {
	t.Helper()
	for _, place := range places {
		if path, err := exec.LookPath(place); err == nil {
			return path
		}
	}
	t.Skipf("%s is not installed: apt-get install %s", what, filepath.Base(places[0]))
	return ""
}
