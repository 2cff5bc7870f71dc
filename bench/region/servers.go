package region

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	members *members // nil without --tls
}

// server is the process of one regional server.
type server struct {
	report.Server
	name, addr string // addr: gRPC
	down       bool   // killed on purpose, so died does not report the end of the process
}

// startCluster starts the servers. close ends the servers and removes their folder. After
// an error startCluster calls close itself.
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
	if o.TLS {
		if c.members, err = newMembers(c.dir); err != nil {
			return nil, err
		}
	}
	const each = 4
	ports, err := report.FreePorts(each * o.Servers)
	if err != nil {
		return nil, err
	}
	for i := range o.Servers {
		name, addr := fmt.Sprintf("s%d", i+1), func(k int) string { return fmt.Sprintf("127.0.0.1:%d", ports[each*i+k]) }
		s := &server{name: name, addr: addr(0)}
		s.Name, s.Exe, s.Log = "server "+name, exe, filepath.Join(c.dir, name+".log")
		s.Args = []string{
			"regional", "--region", report.RegionName, "--name", name, "--data-dir", filepath.Join(c.dir, name),
			"--grpc-addr", addr(0), "--raft-addr", addr(1), "--gossip-addr", addr(2), "--probe-addr", addr(3),
			"--http-addr", "-", "--bootstrap-expect", fmt.Sprint(o.Servers), "--log-level", "warn",
			"--join", fmt.Sprintf("127.0.0.1:%d", ports[2]),
		}
		if c.members != nil {
			folder, err := c.members.server(name)
			if err != nil {
				return nil, err
			}
			s.Args = append(s.Args, "--identity", folder, "--call-rate", "1000000") // all callers are one operator
		}
		if o.FastRaft {
			s.Args = append(s.Args, "--fast-raft")
		}
		if o.Profile != "" {
			s.Args = append([]string{"bench", "profiled", filepath.Join(o.Profile, name), "--"}, s.Args...)
		}
		c.servers = append(c.servers, s)
		if err := s.Start(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *cluster) died() error {
	for _, s := range c.servers {
		if s.down {
			continue
		}
		if err := s.Died(); err != nil {
			return err
		}
	}
	return nil
}

// close ends every server and removes their folder.
func (c *cluster) close() {
	for _, s := range c.servers {
		s.Stop()
	}
	_ = os.RemoveAll(c.dir)
}

// master waits until one of the servers is the master.
func (c *cluster) master(ctx context.Context) (*server, error) {
	ctx, cancel := report.Within(ctx, masterWithin, fmt.Errorf("the servers elected no master within %s", masterWithin))
	defer cancel()
	secure, err := c.members.operator()
	if err != nil {
		return nil, err
	}
	clients := make([]nusav1.SystemClient, len(c.servers))
	for i, s := range c.servers {
		conn, err := serve.Dial(network.Host(), s.addr, secure...)
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

// cpu returns the CPU time that each server has used so far.
func (c *cluster) cpu() ([]time.Duration, error) {
	out := make([]time.Duration, len(c.servers))
	for i, s := range c.servers {
		var err error
		if out[i], err = report.CPUTime(s.PID()); err != nil {
			return nil, errors.Join(s.Died(), err)
		}
	}
	return out, nil
}

// signal sends profiled servers the signal to begin or end their profile.
func (c *cluster) signal(s syscall.Signal) {
	for _, srv := range c.servers {
		srv.Signal(s)
	}
}
