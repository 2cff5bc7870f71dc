package client

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func allocCommand() *cobra.Command {
	s := &settings{}
	c := noun("alloc", "Look at instances, stop them, read their logs, run commands in them",
		allocList(s), allocStatus(s), allocStats(s), allocStop(s), allocLogs(s), allocExec(s))
	s.bind(c)
	s.bindNamespace(c)
	return c
}

func allocList(s *settings) *cobra.Command {
	var jobArg, node string
	var all bool
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List allocations: instances on nodes", Args: takes(),
		RunE: s.run(func(c *caller, _ []string) error {
			req := &nusav1.ListAllocationsRequest{Region: c.region, All: all}
			switch {
			case jobArg != "":
				ref, err := c.ref(jobArg)
				if err != nil {
					return err
				}
				req.Job = ref
			case c.namespace != "":
				req.Job = &nusav1.JobRef{Namespace: c.namespace}
			}
			ctx, cancel := c.call()
			defer cancel()
			if node != "" {
				n, err := c.nodes().Get(ctx, &nusav1.GetNodeRequest{Id: c.node(node), Region: c.region})
				if err != nil {
					return err
				}
				req.NodeId = n.GetId()
			}
			resp, err := c.allocs().List(ctx, req)
			if err != nil {
				return err
			}
			c.partial(resp.GetErrors())
			if len(resp.GetAllocations()) == 0 {
				if err := c.exists(ctx, req); err != nil {
					return err
				}
			}
			if resp.GetTruncated() {
				c.warn("there are more: narrow it with --job, --node or --region")
			}
			return c.print(resp, func(w io.Writer) {
				if len(resp.GetAllocations()) == 0 {
					fmt.Fprintln(w, c.noAllocs(jobArg, node, all, unseen(resp.GetErrors())))
					return
				}
				c.view().allocList(w, resp.GetAllocations(), true)
			})
		}),
	}
	s.bindRegion(c, "only this region's")
	c.Flags().StringVar(&jobArg, "job", "", "only this job's")
	c.Flags().StringVar(&node, "node", "", "only this node's, by name or id")
	c.Flags().BoolVarP(&all, "all", "a", false, "also those that have ended")
	return c
}

// exists fails when the job or the region of a filter that matched nothing is
// not there at all.
func (c *caller) exists(ctx context.Context, req *nusav1.ListAllocationsRequest) error {
	if req.GetJob().GetName() != "" {
		if _, err := c.jobs().Get(ctx, &nusav1.GetJobRequest{Job: req.GetJob()}); err != nil {
			return err
		}
	}
	if req.GetRegion() != "" {
		if _, err := c.regions().Get(ctx, &nusav1.GetRegionRequest{Name: req.GetRegion()}); err != nil {
			return err
		}
	}
	return nil
}

// noAllocs says what was asked for in vain, and what to do next.
func (c *caller) noAllocs(jobArg, node string, all bool, unseen string) string {
	var of []string
	next := c.nusa + " job run FILE starts some"
	if c.namespace != "" && jobArg == "" {
		of, next = append(of, "in namespace "+c.namespace), fmt.Sprintf("%s job list -n %s shows its jobs", c.nusa, c.namespace)
	}
	if c.region != "" {
		of, next = append(of, "in region "+c.region), fmt.Sprintf("%s region status %s shows the region", c.nusa, c.region)
	}
	if node != "" {
		of, next = append(of, "on node "+node), fmt.Sprintf("%s node status %s shows the node", c.nusa, node)
	}
	if jobArg != "" {
		of, next = append(of, "of job "+jobArg), fmt.Sprintf("%s job status %s shows the job", c.nusa, jobArg)
	}
	what := strings.Join(append([]string{"no allocations"}, of...), " ")
	if !all {
		what = strings.Replace(what, "no ", "no live ", 1)
		next = "--all shows those that have ended; " + next
	}
	return what + unseen + "; " + next
}

func (v view) allocList(w io.Writer, allocs []*nusav1.Allocation, jobs bool) {
	t := newTable("ALLOC", "JOB", "INSTANCE", "REGION", "NODE", "STATE", ">EXIT", ">VERSION", ">AGE", "PORTS", "MESSAGE")
	for _, a := range allocs {
		name := ""
		if jobs {
			name = jobName(a.GetNamespace(), a.GetJob(), "")
		}
		t.row(shortID(a.GetId()), name, instance(a), a.GetRegion(), nodeOf(a), v.allocNow(a), exits(a), fmt.Sprint(a.GetJobVersion()),
			v.since(a.GetCreated()), ports(a.GetPorts()), allocWhy(a))
	}
	t.dropBlank("EXIT")
	t.dropEmpty("JOB", "PORTS", "MESSAGE")
	t.narrow(v.width)
	t.write(w, v.palette)
}

// exits is how an allocation's tasks ended: "0", or what is not a plain 0 by
// task, "init=3 side=signal 9"; "" before its end.
func exits(a *nusav1.Allocation) string {
	if a.GetState() < nusav1.AllocState_ALLOC_STATE_COMPLETE {
		return ""
	}
	var parts []string
	ended := false
	for _, name := range slices.Sorted(maps.Keys(a.GetTasks())) {
		t := a.GetTasks()[name]
		if t.GetState() < nusav1.AllocState_ALLOC_STATE_COMPLETE {
			continue
		}
		ended = true
		code := count(t.GetExitCode())
		switch {
		case t.GetSignal() != 0:
			code = "signal " + count(t.GetSignal())
		case t.GetExitCode() < 0:
			code = "-"
		}
		if code == "0" {
			continue
		}
		if len(a.GetTasks()) > 1 {
			code = name + "=" + code
		}
		parts = append(parts, code)
	}
	if ended && len(parts) == 0 {
		return "0"
	}
	return strings.Join(parts, " ")
}

func instance(a *nusav1.Allocation) string { return fmt.Sprintf("%s[%d]", a.GetGroup(), a.GetIndex()) }

func nodeOf(a *nusav1.Allocation) string {
	if a.GetNodeName() != "" {
		return a.GetNodeName()
	}
	return shortID(a.GetNodeId())
}

// allocState is what it is, and what it is to become when that differs.
func allocState(a *nusav1.Allocation) string {
	if a.GetDesired() == nusav1.AllocDesired_ALLOC_DESIRED_STOP && a.GetState() < nusav1.AllocState_ALLOC_STATE_COMPLETE {
		return "stopping"
	}
	return word(a.GetState())
}

// allocNow is its state, and for how long its node has not confirmed that.
func (v view) allocNow(a *nusav1.Allocation) string {
	now := v.state(allocState(a))
	if a.GetNodeSilent() != nil {
		now += ", " + v.wait("silent "+age(a.GetNodeSilent()))
	}
	return now
}

func ports(p map[string]int32) string {
	var parts []string
	for _, label := range slices.Sorted(maps.Keys(p)) {
		parts = append(parts, fmt.Sprintf("%s=%d", label, p[label]))
	}
	return strings.Join(parts, " ")
}

func allocStatus(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "status ID|JOB", Short: "Show one allocation, its tasks and what happened to them", Args: takes("ID|JOB"),
		Long: "Shows one allocation, its tasks and what happened to them.\n\n" + instanceHelp,
		RunE: s.run(func(c *caller, args []string) error {
			ctx, cancel := c.call()
			defer cancel()
			a, err := c.one(ctx, args[0])
			if err != nil {
				return err
			}
			return c.print(a, func(w io.Writer) { c.view().allocStatus(w, a) })
		}),
	}
}

func (v view) allocStatus(w io.Writer, a *nusav1.Allocation) {
	fmt.Fprintln(w, strings.Join([]string{v.bold(shortID(a.GetId())), jobName(a.GetNamespace(), a.GetJob(), ""), instance(a), v.allocNow(a), "on " + nodeOf(a), "in " + a.GetRegion()}, gap))
	t := newTable("", "")
	add := func(name, value string) {
		if value != "" {
			t.row(v.faint(name), value)
		}
	}
	add("id", a.GetId())
	add("why", why(a.GetReason(), a.GetMessage()))
	add("placed", plain(a.GetPlacedBecause()))
	add("version", fmt.Sprintf("%d, attempt %d", a.GetJobVersion(), a.GetAttempt()+1))
	add("epoch", fmt.Sprintf("%d.%d", a.GetGeneration(), a.GetEpoch()))
	if a.GetCreated() != nil {
		add("created", v.since(a.GetCreated())+" ago")
	}
	add("resources", resources(a.GetResources()))
	add("ports", ports(a.GetPorts()))
	t.writeBody(w, v.palette)
	for _, name := range slices.Sorted(maps.Keys(a.GetTasks())) {
		v.task(w, name, a.GetTasks()[name])
	}
}

// allocWhy is why an allocation is as it is. While it starts that is what its
// tasks met: what fails to start again and again, and is restarted, is starting
// all the time.
func allocWhy(a *nusav1.Allocation) string {
	if text := why(a.GetReason(), a.GetMessage()); text != "" || a.GetState() > nusav1.AllocState_ALLOC_STATE_STARTING {
		return text
	}
	for _, name := range slices.Sorted(maps.Keys(a.GetTasks())) {
		t := a.GetTasks()[name]
		if text := why(t.GetReason(), t.GetMessage()); text != "" {
			return "task " + name + ", " + plural(t.GetRestarts(), "restart") + ": " + text
		}
	}
	return ""
}

func (v view) task(w io.Writer, name string, t *nusav1.TaskState) {
	line := []string{v.bold("task " + name), v.state(word(t.GetState()))}
	if t.GetState() >= nusav1.AllocState_ALLOC_STATE_COMPLETE {
		end := fmt.Sprintf("exit code %d", t.GetExitCode())
		switch {
		case t.GetSignal() != 0:
			end = fmt.Sprintf("ended by signal %d", t.GetSignal())
		case t.GetExitCode() < 0:
			end = "no exit code"
		}
		line = append(line, end)
	} else if t.GetRun() > 0 && t.GetStarted() != nil {
		line = append(line, fmt.Sprintf("started %s ago, run %d", v.since(t.GetStarted()), t.GetRun()))
	}
	if t.GetRestarts() > 0 {
		line = append(line, plural(t.GetRestarts(), "restart"))
	}
	if r := why(t.GetReason(), t.GetMessage()); r != "" {
		line = append(line, r)
	}
	fmt.Fprintf(w, "\n%s\n", strings.Join(line, gap))
	if k := t.GetCheck(); k != nil && (t.GetState() < nusav1.AllocState_ALLOC_STATE_COMPLETE || k.GetState() == nusav1.HealthState_HEALTH_STATE_UNHEALTHY) {
		fmt.Fprintln(w, v.check(k))
	}
	if len(t.GetEvents()) == 0 {
		return
	}
	events := newTable(">", "", "")
	if n := t.GetEventsDropped(); n > 0 {
		events.row("", "", v.faint(plural(int(n), "earlier event")+", no longer kept"))
	}
	for _, e := range t.GetEvents() {
		events.row(v.faint(v.since(e.GetTime())+" ago"), e.GetType(), plain(e.GetMessage()))
	}
	events.writeBody(w, v.palette)
}

// check is how a task's checks go: "check http :20001/healthz  healthy for 5m
// last: status 200".
func (v view) check(k *nusav1.CheckState) string {
	line := []string{v.faint("check ") + plain(k.GetCheck())}
	now := v.state(word(k.GetState()))
	if k.GetSince() != nil {
		now += " for " + v.since(k.GetSince())
	}
	line = append(line, now)
	if k.GetMessage() != "" {
		said := plain(k.GetMessage())
		if k.GetFailures() > 0 {
			said += fmt.Sprintf(" (%s in a row)", plural(k.GetFailures(), "failure"))
		}
		if k.GetLate() != nil {
			said += ", " + v.wait(age(k.GetLate())+" late")
		}
		line = append(line, said)
	}
	return strings.Join(line, gap)
}

func resources(r *nusav1.Resources) string {
	if r == nil {
		return ""
	}
	parts := []string{cores(r.GetCpuMilli()) + " cores", size(r.GetMemoryBytes()) + " memory"}
	if r.GetDiskBytes() > 0 {
		parts = append(parts, size(r.GetDiskBytes())+" disk")
	}
	if r.GetGpu().GetCount() > 0 {
		parts = append(parts, plural(r.GetGpu().GetCount(), "GPU"))
	}
	return strings.Join(parts, ", ")
}

func allocStop(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "stop ID|JOB", Short: "Stop one allocation; the scheduler replaces it", Args: takes("ID|JOB"),
		Long: "Stops one allocation; the scheduler replaces it. (job stop stops a job.)\n\n" + instanceHelp,
		RunE: s.run(func(c *caller, args []string) error {
			ctx, cancel := c.call()
			defer cancel()
			a, err := c.one(ctx, args[0])
			if err != nil {
				return err
			}
			a, err = c.allocs().Stop(ctx, &nusav1.GetAllocationRequest{Id: a.GetId()})
			if err != nil {
				return err
			}
			return c.print(a, func(w io.Writer) {
				fmt.Fprintf(w, "%s (%s of %s) is stopping; another will take its place\n", shortID(a.GetId()), instance(a), jobName(a.GetNamespace(), a.GetJob(), ""))
			})
		}),
	}
}
