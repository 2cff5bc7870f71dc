package region

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// masterWithin bounds the time in which servers elect a master.
	masterWithin = 30 * time.Second
)

// cluster holds the processes of the measured region's servers.
type cluster struct {
	dir     string
	servers []*server
}

// server is one of these processes.
type server struct {
	name, exe, log string
	addr           string // gRPC
	args           []string
	cmd            *exec.Cmd
	exited         chan struct{} // closed when the process has ended
	down           bool          // killed on purpose; died does not report it
}

// startCluster starts the servers. close ends them and removes their folder, also
// after an error.
func startCluster(o Options) (_ *cluster, err error) {
	exe := o.Executable
	if exe == "" {
		if exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	c := &cluster{}
	if c.dir, err = os.MkdirTemp(o.Dir, "nusa-bench-"); err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	const each = 4
	ports, err := report.FreePorts(each * o.Servers)
	if err != nil {
		return nil, err
	}
	for i := range o.Servers {
		name, addr := fmt.Sprintf("s%d", i+1), func(k int) string { return fmt.Sprintf("127.0.0.1:%d", ports[each*i+k]) }
		s := &server{name: name, exe: exe, addr: addr(0), log: filepath.Join(c.dir, name+".log")}
		s.args = []string{
			"regional", "--region", report.RegionName, "--name", name, "--data-dir", filepath.Join(c.dir, name),
			"--grpc-addr", addr(0), "--raft-addr", addr(1), "--gossip-addr", addr(2), "--probe-addr", addr(3),
			"--http-addr", "-", "--bootstrap-expect", fmt.Sprint(o.Servers), "--log-level", "warn",
			"--join", fmt.Sprintf("127.0.0.1:%d", ports[2]),
		}
		if o.FastRaft {
			s.args = append(s.args, "--fast-raft")
		}
		if o.Profile != "" {
			s.args = append([]string{"bench", "profiled", filepath.Join(o.Profile, name), "--"}, s.args...)
		}
		c.servers = append(c.servers, s)
		if err := s.start(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// start starts the server's process and writes its output to its log.
func (s *server) start() error {
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = exec.Command(s.exe, s.args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	// Settings of the operator's own servers do not apply here.
	s.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "NUSA_") })
	// The process has a group of its own, so that Ctrl-C does not stop it before this
	// process does. Pdeathsig ends the server when this process ends.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start server %s: %w", s.name, err)
	}
	exited, cmd := make(chan struct{}), s.cmd
	s.exited = exited
	go func() {
		defer close(exited)
		_ = cmd.Wait() // the server's log says why it ended
	}()
	return nil
}

// kill ends the server with SIGKILL.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// stop ends the server with SIGTERM, and with SIGKILL after report.StopWithin.
func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	late := time.NewTimer(report.StopWithin)
	defer late.Stop()
	select {
	case <-s.exited:
	case <-late.C:
		s.kill()
	}
}

// died returns the reason why a server has ended; nil while the server runs.
func (s *server) died() error {
	if s.down {
		return nil
	}
	select {
	case <-s.exited:
	default:
		return nil
	}
	why := "it left no word"
	if data, err := os.ReadFile(s.log); err == nil {
		lines := strings.Split(string(bytes.TrimSpace(data)), "\n")
		why = lines[len(lines)-1]
	}
	return fmt.Errorf("server %s has ended: %s", s.name, why)
}

func (c *cluster) died() error {
	for _, s := range c.servers {
		if err := s.died(); err != nil {
			return err
		}
	}
	return nil
}

// close ends every server and removes their folder.
func (c *cluster) close() {
	for _, s := range c.servers {
		if s.exited != nil {
			s.stop()
		}
	}
	_ = os.RemoveAll(c.dir)
}

// master waits until one of the servers leads.
func (c *cluster) master(ctx context.Context) (*server, error) {
	ctx, cancel := within(ctx, masterWithin, fmt.Errorf("the servers elected no master within %s", masterWithin))
	defer cancel()
	clients := make([]nusav1.SystemClient, len(c.servers))
	for i, s := range c.servers {
		conn, err := serve.Dial(network.Host(), s.addr)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		clients[i] = nusav1.NewSystemClient(conn)
	}
	poll := time.NewTicker(report.PollEvery)
	defer poll.Stop()
	for {
		for i, s := range c.servers {
			if s.down {
				continue
			}
			info, err := clients[i].Info(ctx, &nusav1.InfoRequest{})
			if err == nil && info.GetLeader() {
				return s, nil
			}
		}
		if err := c.died(); err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-poll.C:
		}
	}
}

// cpu returns the CPU time that each server has used.
func (c *cluster) cpu() ([]time.Duration, error) {
	out := make([]time.Duration, len(c.servers))
	for i, s := range c.servers {
		var err error
		if out[i], err = report.CPUTime(s.cmd.Process.Pid); err != nil {
			return nil, errors.Join(s.died(), err)
		}
	}
	return out, nil
}

// signal tells profiled servers to begin or end a profile.
func (c *cluster) signal(s syscall.Signal) {
	for _, srv := range c.servers {
		_ = srv.cmd.Process.Signal(s)
	}
}
