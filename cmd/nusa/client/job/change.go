package job

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/override"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func scaleCommand(s *cli.Settings) *cobra.Command {
	var r submission
	var here override.Flags
	c := &cobra.Command{
		Use: "scale JOB [GROUP] COUNT", Short: "Change how many instances a group has", Args: cli.Positional("JOB", "COUNT|GROUP", "[COUNT]"),
		Long: `Submits the job with another count for one group, and waits like job run. GROUP may be
left out if the job has one group. The exit codes are those of job run. With --override it
bounds only how many instances one region runs of a service of the federation. The region
cannot run more than it owns; that number ends the bound.`,
		Example: "  nusa job scale web 5\n  nusa job scale web api 0 --detach\n  nusa job scale web 1 --override --region jakarta",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ref, err := c.Ref(args[0])
			if err != nil {
				return err
			}
			if r.timeout <= 0 {
				return errNoTime(r.timeout)
			}
			count, err := strconv.ParseInt(args[len(args)-1], 10, 32)
			if err != nil || count < 0 {
				return fmt.Errorf("COUNT: %q is not a whole number from 0", args[len(args)-1])
			}
			group := strings.Join(args[1:len(args)-1], "")
			if err := here.Check(c); err != nil {
				return err
			}
			if here.On {
				return here.Set(c, &nusav1.SetOverrideRequest{Job: ref, Group: group, Count: int32(count)})
			}
			return r.scale(c, ref, args[0], group, int32(count))
		}),
	}
	here.Bind(s, c, "scale the group")
	c.Flags().BoolVarP(&r.detach, "detach", "d", false, "do not wait")
	c.Flags().DurationVar(&r.timeout, "timeout", runTimeout, "how long to wait until the job runs")
	return c
}

// scale submits a job with another count for one group, and waits unless r says not to. An empty group
// stands for the only one. name is the job as the user named it.
func (r *submission) scale(c *cli.Session, ref *nusav1.JobRef, name, group string, count int32) error {
	r.region = ref.GetRegion()
	if r.region != "" {
		done, err := redial(c, r.region)
		if err != nil {
			return err
		}
		defer done()
	}
	ctx, cancel := c.WithTimeout()
	j, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref})
	cancel()
	if err != nil {
		return err
	}
	if err := scalable(c, ref, j); err != nil {
		return err
	}
	group, err = chosenGroup(ref, j.GetSpec(), group)
	if err != nil {
		return err
	}
	spec := proto.CloneOf(j.GetSpec())
	spec.Groups[group].Count = proto.Int32(count)
	r.check = cmp.Or(r.check, j.GetRevision()) // another submit in between must not be lost
	f, err := r.send(c, &jobSource{JobSpec: spec, name: name})
	if err != nil || f == nil {
		return err
	}
	return f.wait()
}

// scalable returns an error for a job whose count is not changed by itself.
func scalable(c *cli.Session, ref *nusav1.JobRef, j *nusav1.Job) error {
	switch {
	case j.GetStopped():
		return fmt.Errorf("%s is stopped: run it again with %s job run FILE", cli.RefName(ref), c.Program)
	case j.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_SYSTEM:
		return fmt.Errorf("%s is a system job, which has an instance on every node", cli.RefName(ref))
	}
	return nil
}

// chosenGroup returns the name of a job's group. An empty name stands for the only one.
func chosenGroup(ref *nusav1.JobRef, spec *nusav1.JobSpec, name string) (string, error) {
	all := slices.Sorted(maps.Keys(spec.GetGroups()))
	switch {
	case name == "" && len(all) == 1:
		return all[0], nil
	case name == "":
		return "", fmt.Errorf("GROUP is missing: %s has the groups %s", cli.RefName(ref), strings.Join(all, ", "))
	case spec.GetGroups()[name] == nil:
		return "", fmt.Errorf("%s has no group %s: it has %s", cli.RefName(ref), name, strings.Join(all, ", "))
	}
	return name, nil
}

// errNoTime is the error of a --timeout that leaves no time, of a command with --detach.
func errNoTime(d time.Duration) error {
	return fmt.Errorf("--timeout: %s is not more than 0; --detach does not wait", d)
}

func waitCommand(s *cli.Settings) *cobra.Command {
	var stop bool
	timeout := time.Duration(0)
	c := &cobra.Command{
		Use: "wait JOB", Short: "Wait until a job runs, has completed, or has stopped", Args: cli.Positional("JOB"),
		Long: `Waits until every instance of a job runs its present version (service, system) or has
completed (batch), and shows the progress. With --stopped it waits until nothing of a
stopped job runs. The exit codes are those of job run.`,
		Example: "  nusa job run --detach hello.yaml && nusa job wait hello\n  nusa job wait hello --stopped",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ref, err := c.Ref(args[0])
			if err != nil {
				return err
			}
			if err := cli.CheckTimeout(timeout); err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			j, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref})
			cancel()
			switch {
			case err != nil:
				return err
			case stop && !j.GetStopped():
				return fmt.Errorf("%s is not stopped: %s job stop %s stops it", cli.RefName(ref), c.Program, cli.RefArg(ref))
			}
			f := waiter{Session: c, ref: ref, version: j.GetVersion(), began: time.Now(), timeout: timeout, only: true, unchanged: true,
				batch: j.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_BATCH && !job.IsTemplate(j.GetSpec()), template: job.IsTemplate(j.GetSpec()), stopping: stop, file: args[0]}
			return f.wait()
		}),
	}
	c.Flags().BoolVar(&stop, "stopped", false, "wait until nothing of the stopped job runs")
	c.Flags().DurationVar(&timeout, "timeout", runTimeout, "how long to wait")
	return c
}

// restartPoll is how often a restart is looked at.
const restartPoll = 500 * time.Millisecond

// restart holds the flags of `job restart`.
type restart struct {
	group, task string
	batch       int
	timeout     time.Duration
}

func restartCommand(s *cli.Settings) *cobra.Command {
	var r restart
	c := &cobra.Command{
		Use: "restart JOB", Short: "Restart the tasks of a job where they are, some at a time", Args: cli.Positional("JOB"),
		Long: `Restarts the running instances of a job on their nodes, --batch at a time. The next ones
follow when the tasks of these run again, and are healthy. An instance that does not run
again within --timeout ends the command with exit code 2; the others are left alone.`,
		Example: "  nusa job restart web\n  nusa job restart web --group api --batch 5",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ref, err := c.Ref(args[0])
			switch {
			case err != nil:
				return err
			case r.batch < 1:
				return fmt.Errorf("--batch: %d is not at least 1", r.batch)
			}
			if err := cli.CheckTimeout(r.timeout); err != nil {
				return err
			}
			return r.run(c, ref)
		}),
	}
	c.Flags().StringVar(&r.group, "group", "", "only instances of this group")
	c.Flags().StringVar(&r.task, "task", "", "only this task; default: all running tasks")
	c.Flags().IntVar(&r.batch, "batch", 1, "how many instances restart at the same time")
	c.Flags().DurationVar(&r.timeout, "timeout", runTimeout, "how long to wait for one batch")
	return c
}

func (r *restart) run(c *cli.Session, ref *nusav1.JobRef) error {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	j, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref})
	if err != nil {
		return err
	}
	if r.group != "" {
		if _, err := chosenGroup(ref, j.GetSpec(), r.group); err != nil {
			return err
		}
	}
	list, err := c.Allocs().List(ctx, &nusav1.ListAllocationsRequest{Job: ref, Limit: maxInstances})
	switch {
	case err != nil:
		return err
	case list.GetTruncated():
		return fmt.Errorf("%s has more than %d instances: restart one --group at a time", cli.RefName(ref), maxInstances)
	}
	c.WarnPartial(list.GetErrors())
	list.Allocations = slices.DeleteFunc(list.GetAllocations(), func(a *nusav1.Allocation) bool {
		return a.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING || a.GetDesired() == nusav1.AllocDesired_ALLOC_DESIRED_STOP || r.group != "" && a.GetGroup() != r.group
	})
	all := list.GetAllocations()
	if len(all) == 0 {
		return fmt.Errorf("nothing of %s runs: see %s job status %s", cli.RefName(ref), c.Program, cli.RefArg(ref))
	}
	done := 0
	for some := range slices.Chunk(all, r.batch) {
		if err := r.some(c, some); err != nil {
			return fmt.Errorf("%d of %d instances restarted: %w", done, len(all), err)
		}
		done += len(some)
		if c.Output == "table" && len(all) > 1 && done < len(all) {
			c.Printf("%d of %d instances run again\n", done, len(all))
		}
	}
	return c.Print(list, func(w *term.Screen) {
		fmt.Fprintf(w, "%s: %s run again\n", cli.RefName(ref), term.Plural(int32(len(all)), "instance"))
	})
}

// maxInstances is the greatest number of instances that job restart restarts.
const maxInstances = 10_000

// some restarts some instances, and waits until all of them run again.
func (r *restart) some(c *cli.Session, some []*nusav1.Allocation) error {
	ctx, cancel := context.WithTimeout(c.Ctx, r.timeout)
	defer cancel()
	waiting := map[string]map[string]int32{} // the tasks of each instance, and their runs before
	for _, a := range some {
		resp, err := c.Allocs().Restart(ctx, &nusav1.RestartAllocationRequest{Allocation: a.GetId(), Task: r.task})
		if err != nil {
			return err
		}
		before := map[string]int32{}
		for _, name := range resp.GetTasks() {
			before[name] = a.GetTasks()[name].GetRun()
		}
		waiting[a.GetId()] = before
	}
	tick := time.NewTicker(restartPoll)
	defer tick.Stop()
	for {
		for _, id := range slices.Sorted(maps.Keys(waiting)) {
			a, err := c.Allocs().Get(ctx, &nusav1.GetAllocationRequest{Id: id})
			if ctx.Err() != nil {
				break
			}
			switch {
			case err != nil:
				return err
			case a.GetState() > nusav1.AllocState_ALLOC_STATE_RUNNING:
				return fmt.Errorf("%s ended as %s: see %s alloc status %s", term.ShortID(id), term.Word(a.GetState()), c.Program, term.ShortID(id))
			case runsAgain(a, waiting[id]):
				delete(waiting, id)
			}
		}
		if len(waiting) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			id := slices.Min(slices.Collect(maps.Keys(waiting)))
			return &cli.ExitError{Code: cli.ExitWaiting, Err: fmt.Errorf("%s does not run again after --timeout %s: see %s alloc status %s", term.ShortID(id), r.timeout, c.Program, term.ShortID(id))}
		case <-tick.C:
		}
	}
}

// runsAgain reports whether tasks of an instance run with a later run than before.
func runsAgain(a *nusav1.Allocation, before map[string]int32) bool {
	for name, run := range before {
		t := a.GetTasks()[name]
		if t.GetRun() <= run || t.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING {
			return false
		}
	}
	return true
}
