package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/nusa-scheduler/nusa/cmd/nusa/dev"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// failoverJob is the job file of `nusa demo --failover`. The job's instances move after
// eight seconds without contact.
//
//go:embed demo_failover.yaml
var failoverJob []byte

const (
	failoverName = "resilient"
	// failoverWithin is the longest time for the move of the instances, and for their return.
	failoverWithin = 40 * time.Second
	// failoverPoll is the interval between two reads of the job.
	failoverPoll = 200 * time.Millisecond
)

// errNoCut: --failover needs an emulated network.
var errNoCut = errors.New("--failover: the network of --wan none cannot be cut; leave --wan out, or name a table")

// failoverDemo cuts a region off and shows that its work runs in other regions.
type failoverDemo struct {
	w io.Writer
	f dev.Federation
	// show prints a comment, and then runs a command line of nusa.
	show func(ctx context.Context, why string, args ...string) error
	jobs nusav1.JobsClient
}

// run runs the steps of the demo.
func (d *failoverDemo) run(ctx context.Context) error {
	if d.f.Cut == nil {
		return errNoCut
	}
	var operator *trust.Source
	if d.f.Identity != "" {
		var err error
		operator, err = trust.Open(trust.Options{Dir: d.f.Identity})
		if err != nil {
			return err
		}
	}
	conn, err := serve.Dial(network.Host(), d.f.Addr, operator.Dial(identity.GlobalServers()))
	if err != nil {
		return err
	}
	defer conn.Close()
	d.jobs = nusav1.NewJobsClient(conn)
	file := filepath.Join(d.f.DataDir, failoverName+".yaml")
	if err := os.WriteFile(file, failoverJob, 0o600); err != nil {
		return err
	}
	if err := d.show(ctx, "A job that may move 8 s after its region is cut off", "job", "run", file); err != nil {
		return err
	}
	lost, err := d.victim(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.w, "\n# %s loses its connection to all other regions. Its instances continue.\n", lost)
	d.f.Cut(lost)
	begun := time.Now()
	if err := d.until(ctx, "the instances of "+lost+" did not move", func(j *nusav1.Job) bool { return moved(j, lost) }); err != nil {
		return err
	}
	fmt.Fprintf(d.w, "# After %s other regions run them.\n", time.Since(begun).Round(100*time.Millisecond))
	if err := d.show(ctx, "Where does it run, and where may it still run?", "job", "status", failoverName); err != nil {
		return err
	}
	if err := d.show(ctx, "The regions", "region", "list"); err != nil {
		return err
	}
	fmt.Fprintf(d.w, "\n# %s is connected again. Its instances never stopped: the replacements end.\n", lost)
	d.f.Heal(lost)
	begun = time.Now()
	if err := d.until(ctx, lost+" did not get its instances back", func(j *nusav1.Job) bool { return back(j, lost) }); err != nil {
		return err
	}
	fmt.Fprintf(d.w, "# After %s each instance runs exactly once.\n", time.Since(begun).Round(100*time.Millisecond))
	return d.show(ctx, "The same instances as before", "job", "status", failoverName)
}

// victim returns a region that runs an instance of the job. It does not return the
// first region, because the global server is at the place of that region.
func (d *failoverDemo) victim(ctx context.Context) (string, error) {
	name := ""
	err := d.until(ctx, "the job did not start", func(j *nusav1.Job) bool {
		for _, s := range slots(j) {
			if s.GetRegion() != d.f.Names[0] {
				name = s.GetRegion()
			}
		}
		return name != "" && j.GetStatus().GetState() == nusav1.JobState_JOB_STATE_RUNNING
	})
	return name, err
}

// until polls the job until done returns true. otherwise is the error text if that takes
// too long.
func (d *failoverDemo) until(ctx context.Context, otherwise string, done func(*nusav1.Job) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, failoverWithin, fmt.Errorf("%s within %s", otherwise, failoverWithin))
	defer cancel()
	for {
		j, err := d.jobs.Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: "default", Name: failoverName}})
		if err == nil && done(j) {
			return nil
		}
		wait.For(ctx, failoverPoll)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func slots(j *nusav1.Job) (out []*nusav1.Slot) {
	for _, g := range j.GetStatus().GetGroups() {
		out = append(out, g.GetSlots()...)
	}
	return out
}

// moved reports whether all instances run and no slot belongs to the region named lost.
func moved(j *nusav1.Job, lost string) bool {
	for _, s := range slots(j) {
		if s.GetRegion() == lost {
			return false
		}
	}
	return allRunning(j)
}

// back reports whether the region named lost owns slots again, no slot has a former
// owner, and all instances run.
func back(j *nusav1.Job, lost string) bool {
	owns := false
	for _, s := range slots(j) {
		if len(s.GetFormer()) > 0 || s.GetDesired() != nusav1.SlotDesired_SLOT_DESIRED_RUN {
			return false
		}
		owns = owns || s.GetRegion() == lost
	}
	return owns && allRunning(j)
}

func allRunning(j *nusav1.Job) bool {
	for _, g := range j.GetStatus().GetGroups() {
		if g.GetCounts().GetRunning() < g.GetDesired() {
			return false
		}
	}
	return len(j.GetStatus().GetGroups()) > 0
}
