package failover

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

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nusa-scheduler/nusa/bench/report"
)

// fleet holds the processes of a federation: one global server, and one regional server
// and one agent for each region. Each region reaches the global tier through its own
// proxy.
type fleet struct {
	dir, tasks string
	exe        string
	regions    []string
	proxies    map[string]*proxy
	conn       *grpc.ClientConn
	// agents are ended before servers, so that the agents can stop their tasks.
	agents, servers []*process

	proxying *errgroup.Group
	stop     context.CancelFunc
}

// process is one process of the fleet.
type process struct {
	name   string
	cmd    *exec.Cmd
	log    string
	exited chan struct{}
}

// regionNames are the names of the fleet's regions.
var regionNames = []string{"jakarta", "seoul", "tokyo", "sydney", "mumbai"}

// startFleet starts the processes. close ends them and removes their folder.
func startFleet(ctx context.Context, o Options) (_ *fleet, err error) {
	f := &fleet{exe: o.Executable, proxies: map[string]*proxy{}, regions: regionNames[:o.Regions]}
	if f.exe == "" {
		if f.exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	if f.dir, err = os.MkdirTemp(o.Dir, "nusa-bench-"); err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	f.tasks = filepath.Join(f.dir, "tasks")
	var run context.Context
	run, f.stop = context.WithCancel(context.WithoutCancel(ctx))
	f.proxying, run = errgroup.WithContext(run)
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	if err := os.Mkdir(f.tasks, 0o700); err != nil {
		return nil, err
	}
	const each = 4
	ports, err := report.FreePorts(4 + each*o.Regions)
	if err != nil {
		return nil, err
	}
	addr := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	if err := f.start(&f.servers, "global", "global", "--name", "g1", "--grpc-addr", addr(0), "--http-addr", "-",
		"--etcd-client-addr", addr(1), "--etcd-peer-addr", addr(2), "--lease", o.Lease.String()); err != nil {
		return nil, err
	}
	for i, region := range f.regions {
		p, err := newProxy(addr(0))
		if err != nil {
			return nil, err
		}
		f.proxies[region] = p
		f.proxying.Go(func() error { return p.run(run) })
		at := func(k int) string { return addr(4 + each*i + k) }
		err = f.start(&f.servers, region, "regional", "--region", region, "--name", region+"-1", "--grpc-addr", at(0), "--raft-addr", at(1),
			"--gossip-addr", at(2), "--probe-addr", at(3), "--http-addr", "-", "--fast-raft", "--global", p.addr())
		if err == nil {
			err = f.start(&f.agents, region+"-agent", "agent", "--region", region, "--name", region+"-node", "--servers", at(0),
				"--http-addr", "-", "--docker-host", "off", "--incus", "off", "--leave-on-shutdown")
		}
		if err != nil {
			return nil, err
		}
	}
	f.conn, err = grpc.NewClient(addr(0), grpc.WithTransportCredentials(insecure.NewCredentials()))
	return f, err
}

// start starts one process with a data directory of its own.
func (f *fleet) start(list *[]*process, name, role string, args ...string) error {
	p := &process{name: name, log: filepath.Join(f.dir, name+".log"), exited: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer out.Close()
	p.cmd = exec.Command(f.exe, slices.Concat([]string{role, "--data-dir", filepath.Join(f.dir, name), "--log-level", "warn"}, args)...)
	p.cmd.Env = []string{report.Plain}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "NUSA_") { // the roles read NUSA_ variables as configuration
			p.cmd.Env = append(p.cmd.Env, kv)
		}
	}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	*list = append(*list, p)
	return nil
}

// died returns an error if a process has ended by itself. The error has the end of the
// process's log.
func (f *fleet) died() error {
	for _, p := range slices.Concat(f.servers, f.agents) {
		select {
		case <-p.exited:
			text, _ := os.ReadFile(p.log)
			text = bytes.TrimSpace(text)
			return fmt.Errorf("%s ended by itself: %s", p.name, text[max(0, len(text)-500):])
		default:
		}
	}
	return nil
}

// close ends the agents and then the servers, and removes the folder.
func (f *fleet) close() error {
	for _, p := range f.proxies {
		p.heal()
	}
	var errs []error
	if f.conn != nil {
		errs = append(errs, f.conn.Close())
	}
	for _, list := range [][]*process{f.agents, f.servers} {
		for _, p := range list {
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
		}
		for _, p := range list {
			select {
			case <-p.exited:
			case <-time.After(stopWithin):
				_ = p.cmd.Process.Kill()
				<-p.exited
				errs = append(errs, fmt.Errorf("%s did not end within %s and was killed", p.name, stopWithin))
			}
		}
	}
	f.stop()
	return errors.Join(append(errs, f.proxying.Wait(), os.RemoveAll(f.dir))...)
}
