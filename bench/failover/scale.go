package failover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/bench/emulate"
	"github.com/nusa-scheduler/nusa/bench/load"
	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// askCPU and askMemory are what an instance of an emulated region reserves, in
	// thousandths of a CPU and in bytes. perNode is how many instances fit on a node of such
	// a region.
	askCPU    = 100
	askMemory = 64 << 20
	perNode   = 640
	// callers is the number of streams that submit the jobs.
	callers = 4
)

// Scale says how large a federation of emulated regions is.
type Scale struct {
	// Instances is the number of instances. Each is a job of its own, so each has a slot of
	// its own.
	Instances int
	// Regions is the number of regions.
	Regions int
	// After is disconnect.region.after of the jobs. Lease is the lease of regions.
	After, Lease time.Duration
	// Timeout bounds each wait.
	Timeout time.Duration
	// Dir is the parent of the temporary folder.
	Dir string
	// Executable serves the global server; default: this program.
	Executable string
	// Progress shows a line of text; "" ends the line. It may be nil.
	Progress func(string)
}

func (o *Scale) progress(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}

// federation is a global server, as a process, and emulated regions in this process. Some of
// the regions reach the server through a proxy, which can be cut.
type federation struct {
	o      Scale
	dir    string
	server report.Server
	addr   string
	conn   *grpc.ClientConn
	proxy  *proxy
	group  *errgroup.Group
	ctx    context.Context
	stop   context.CancelFunc
}

// startFederation starts the server. close ends the server and the regions.
func startFederation(ctx context.Context, o Scale) (_ *federation, err error) {
	f := &federation{o: o}
	exe := o.Executable
	if exe == "" {
		if exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	if f.dir, err = os.MkdirTemp(o.Dir, "nusa-bench-"); err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	f.stop = stop
	f.group, f.ctx = errgroup.WithContext(run)
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	ports, err := report.FreePorts(3)
	if err != nil {
		return nil, err
	}
	at := func(k int) string { return fmt.Sprintf("127.0.0.1:%d", ports[k]) }
	f.addr = at(0)
	f.server = report.Server{Name: "the global server", Exe: exe, Log: filepath.Join(f.dir, "log"), Args: []string{
		"global", "--name", "g1", "--data-dir", filepath.Join(f.dir, "data"), "--grpc-addr", at(0), "--http-addr", "-",
		"--etcd-client-addr", at(1), "--etcd-peer-addr", at(2), "--log-level", "error", "--lease", o.Lease.String(),
	}}
	if err := f.server.Start(); err != nil {
		return nil, err
	}
	if f.proxy, err = newProxy(f.addr); err != nil {
		return nil, err
	}
	f.group.Go(func() error { return f.proxy.run(f.ctx) })
	if f.conn, err = serve.Dial(network.Host(), f.addr); err != nil {
		return nil, err
	}
	return f, f.until(ctx, "the global server is not active", func() (bool, error) {
		info, err := report.Ask(ctx, f.addr, "global")
		return err == nil && info.GetLeader(), nil
	})
}

// close ends the regions and the server, and removes the folder.
func (f *federation) close() error {
	f.stop()
	errs := []error{f.group.Wait()}
	if f.conn != nil {
		errs = append(errs, f.conn.Close())
	}
	f.server.Stop()
	return errors.Join(append(errs, os.RemoveAll(f.dir))...)
}

// join starts emulated regions and waits until all hold a lease. The regions reach the server
// at addr.
func (f *federation) join(ctx context.Context, cfg emulate.Config) error {
	cfg.Ask = func(string) (int64, int64) { return askCPU, askMemory }
	fleet := emulate.New(cfg)
	f.group.Go(func() error { return fleet.Run(f.ctx) })
	ctx, cancel := report.Within(ctx, f.o.Timeout, fmt.Errorf("not within --timeout %s", f.o.Timeout))
	defer cancel()
	return fleet.AwaitConnected(ctx, func(n int) { f.o.progress("%d of %d regions connected", n, cfg.Regions) })
}

// submit submits the jobs.
func (f *federation) submit(ctx context.Context) error {
	f.o.progress("submitting %d jobs", f.o.Instances)
	l, err := load.New(load.Options{Stream: true, Concurrency: callers}, f.addr, callers)
	if err != nil {
		return err
	}
	defer l.Close()
	config, _ := structpb.NewStruct(map[string]any{"command": "true"}) // cannot fail: a string
	replace, count := true, int32(1)
	groups := map[string]*nusav1.Group{"main": {
		Count: &count,
		Disconnect: &nusav1.Disconnect{Region: &nusav1.DisconnectLevel{
			After: durationpb.New(f.o.After), Running: nusav1.Running_RUNNING_KEEP, Replace: &replace,
		}},
		Tasks: map[string]*nusav1.Task{"main": {
			Driver: "process", Config: config, Resources: &nusav1.Resources{CpuMilli: askCPU, MemoryBytes: askMemory},
		}},
	}}
	return l.Submit(ctx, load.Jobs{
		Number: f.o.Instances,
		Spec: func(i int) *nusav1.JobSpec {
			return &nusav1.JobSpec{Name: fmt.Sprintf("failover-%06d", i), Type: nusav1.JobType_JOB_TYPE_SERVICE, Groups: groups}
		},
		Sent: func(int, time.Time) {}, Answered: func(int) {},
	})
}

// until polls done for at most Scale.Timeout, until it returns true or an error, or the server
// has ended. what begins the text of the error.
func (f *federation) until(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := report.Within(ctx, f.o.Timeout, fmt.Errorf("%s within --timeout %s", what, f.o.Timeout))
	defer cancel()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if err := errors.Join(f.server.Died(), context.Cause(f.ctx)); err != nil {
			return err
		}
		if err := report.Pause(ctx, pollEvery); err != nil {
			return err
		}
	}
}
