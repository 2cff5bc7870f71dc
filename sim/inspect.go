package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Submit sends a job file to the global servers until one accepts it.
func (f *Federation) Submit(spec string) {
	f.t.Helper()
	parsed, err := job.Parse([]byte(spec), "job.yaml")
	if err != nil {
		f.t.Fatal(err)
	}
	f.Eventually(time.Minute, "submit "+parsed.GetName(), func(ctx context.Context) error {
		return f.OnGlobal(func(conn *grpc.ClientConn) error {
			_, err := nusav1.NewJobsClient(conn).Submit(ctx, &nusav1.SubmitRequest{Spec: parsed})
			return err
		})
	})
}

// StopJob asks a global server to stop a job.
func (f *Federation) StopJob(name string) {
	f.t.Helper()
	f.Eventually(time.Minute, "stop "+name, func(ctx context.Context) error {
		return f.OnGlobal(func(conn *grpc.ClientConn) error {
			_, err := nusav1.NewJobsClient(conn).Stop(ctx, &nusav1.StopJobRequest{Job: &nusav1.JobRef{Namespace: "default", Name: name}})
			return err
		})
	})
}

// Gone checks that no instance of a job runs, that no region owns a part of the job, and that the
// job's state is stopped.
func (f *Federation) Gone(ctx context.Context, name string) error {
	runs, err := f.Runs(ctx)
	if err != nil {
		return err
	}
	for i, r := range runs {
		if i.Job == name {
			return fmt.Errorf("%v still runs: %v", i, r)
		}
	}
	j, err := f.Job(ctx, name)
	if err != nil {
		return err
	}
	for group, g := range j.GetStatus().GetGroups() {
		if len(g.GetSlots()) > 0 {
			return fmt.Errorf("%s/%s has owners: %v", name, group, g.GetSlots())
		}
	}
	if state := j.GetStatus().GetState(); state != nusav1.JobState_JOB_STATE_STOPPED {
		return fmt.Errorf("%s is %v", name, state)
	}
	return nil
}

// Job returns a job of the default namespace from a global server.
func (f *Federation) Job(ctx context.Context, name string) (j *nusav1.Job, err error) {
	err = f.OnGlobal(func(conn *grpc.ClientConn) error {
		j, err = nusav1.NewJobsClient(conn).Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: "default", Name: name}})
		return err
	})
	return j, err
}

// AwaitRegions waits until every region is connected and reports all its running agents.
func (f *Federation) AwaitRegions() {
	f.t.Helper()
	f.Eventually(time.Minute, "regions connected", func(ctx context.Context) error {
		var list *nusav1.ListRegionsResponse
		err := f.OnGlobal(func(conn *grpc.ClientConn) (err error) {
			list, err = nusav1.NewRegionsClient(conn).List(ctx, &nusav1.ListRegionsRequest{})
			return err
		})
		if err != nil {
			return err
		}
		if len(list.GetRegions()) != len(f.opts.Regions) {
			return fmt.Errorf("%d regions of %d", len(list.GetRegions()), len(f.opts.Regions))
		}
		for _, r := range list.GetRegions() {
			name := r.GetDefinition().GetName()
			if r.GetState() != nusav1.RegionState_REGION_STATE_CONNECTED {
				return fmt.Errorf("%s is %v", name, r.GetState())
			}
			if got, want := int(r.GetReport().GetNodesReady()), f.agentsOf(name); got != want {
				return fmt.Errorf("%s reports %d nodes of %d", name, got, want)
			}
		}
		return nil
	})
}

func (f *Federation) agentsOf(region string) int {
	count := 0
	for name := range f.processes {
		if strings.HasPrefix(name, region+"-agent-") {
			count++
		}
	}
	return count
}

// Master returns the number, counted from 1, of the region's server that leads.
func (f *Federation) Master(region string) int {
	f.t.Helper()
	master := 0
	f.Eventually(time.Minute, "a master of "+region, func(ctx context.Context) error {
		for i := 1; i <= f.opts.Servers; i++ {
			if f.processes[fmt.Sprintf("%s-%d", region, i)] == nil {
				continue
			}
			info, err := nusav1.NewSystemClient(f.Server(region, i)).Info(ctx, &nusav1.InfoRequest{})
			if err == nil && info.GetLeader() {
				master = i
				return nil
			}
		}
		return errNotYet
	})
	return master
}

// Active returns the number, counted from 1, of the active global server.
func (f *Federation) Active() int {
	f.t.Helper()
	active := 0
	f.Eventually(time.Minute, "an active global server", func(ctx context.Context) error {
		for i := 1; i <= f.opts.Globals; i++ {
			if f.processes[fmt.Sprintf("global-%d", i)] == nil {
				continue
			}
			info, err := nusav1.NewSystemClient(f.Global(i)).Info(ctx, &nusav1.InfoRequest{})
			if err == nil && info.GetLeader() {
				active = i
				return nil
			}
		}
		return errNotYet
	})
	return active
}

// OnGlobal makes a call to one global server after the other, as clients do, until one returns
// something else than UNAVAILABLE.
func (f *Federation) OnGlobal(call func(*grpc.ClientConn) error) error {
	f.t.Helper()
	err := errNotYet
	for i := 1; i <= f.opts.Globals; i++ {
		if f.processes[fmt.Sprintf("global-%d", i)] == nil {
			continue
		}
		if err = call(f.Global(i)); status.Code(err) != codes.Unavailable {
			return err
		}
	}
	return err
}

// Instance is one index of a group.
type Instance struct {
	Job, Group string
	Index      int32
}

// Run is a task that is running.
type Run struct {
	Alloc, Agent, Region string
}

// Runs returns, by instance, the tasks that really run now on machines that are up. It asks every
// region for its allocations, so each region must have a master.
func (f *Federation) Runs(ctx context.Context) (map[Instance][]Run, error) {
	known := map[string]*nusav1.Allocation{}
	for _, region := range f.opts.Regions {
		list, err := f.Allocations(ctx, region)
		if err != nil {
			return nil, err
		}
		for _, a := range list {
			known[a.GetId()] = a
		}
	}
	out := map[Instance][]Run{}
	for _, name := range slices.Sorted(maps.Keys(f.drivers)) {
		for _, id := range f.drivers[name].Running() {
			a := known[id.Alloc]
			if a == nil {
				return nil, fmt.Errorf("%s runs allocation %s, which no region knows", name, id.Alloc)
			}
			i := Instance{Job: a.GetJob(), Group: a.GetGroup(), Index: a.GetIndex()}
			out[i] = append(out[i], Run{Alloc: id.Alloc, Agent: name, Region: a.GetRegion()})
		}
	}
	return out, nil
}

// Allocations returns all allocations that a region knows, ended ones included.
func (f *Federation) Allocations(ctx context.Context, region string) ([]*nusav1.Allocation, error) {
	for i := 1; i <= f.opts.Servers; i++ {
		if f.processes[fmt.Sprintf("%s-%d", region, i)] == nil {
			continue
		}
		list, err := nusav1.NewAllocationsClient(f.Server(region, i)).List(ctx, &nusav1.ListAllocationsRequest{All: true, Limit: 10_000})
		return list.GetAllocations(), err
	}
	return nil, fmt.Errorf("no server of %s runs", region)
}

// RunsOnce checks that exactly the instances 0..count-1 of a job's group run, each once. It also
// checks that each has one owner in the global tier: the region where it runs.
func (f *Federation) RunsOnce(ctx context.Context, name, group string, count int32) error {
	runs, err := f.Runs(ctx)
	if err != nil {
		return err
	}
	owner, err := f.Owners(ctx, name, group)
	if err != nil {
		return err
	}
	for i := range count {
		r := runs[Instance{Job: name, Group: group, Index: i}]
		if len(r) != 1 {
			return fmt.Errorf("%s/%s[%d] runs %d times: %v", name, group, i, len(r), r)
		}
		if owner[i] != r[0].Region {
			return fmt.Errorf("%s/%s[%d] runs in %s and belongs to %q", name, group, i, r[0].Region, owner[i])
		}
	}
	for i := range runs {
		if i.Job == name && i.Group == group && i.Index >= count {
			return fmt.Errorf("%s/%s[%d] runs, only %d are wanted", name, group, i.Index, count)
		}
	}
	return nil
}

// Owners maps the indices of a group to the regions that own them. An index with two owners is an
// error.
func (f *Federation) Owners(ctx context.Context, name, group string) (map[int32]string, error) {
	j, err := f.Job(ctx, name)
	if err != nil {
		return nil, err
	}
	out := map[int32]string{}
	for _, s := range j.GetStatus().GetGroups()[group].GetSlots() {
		for i := s.GetFrom(); i < s.GetTo(); i++ {
			if out[i] != "" {
				return nil, fmt.Errorf("%s/%s[%d] belongs to %s and to %s", name, group, i, out[i], s.GetRegion())
			}
			out[i] = s.GetRegion()
		}
	}
	return out, nil
}
