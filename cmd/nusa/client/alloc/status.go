package alloc

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func statusCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "status ID|JOB", Short: "Show one allocation, its tasks and what happened to them", Args: cli.Positional("ID|JOB"),
		Long: "Shows one allocation, its tasks and what happened to them.\n\n" + instanceHelp,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			a, err := findAlloc(ctx, c, args[0])
			if err != nil {
				return err
			}
			return c.Print(a, func(w *term.Screen) { writeAlloc(w, a) })
		}),
	}
}

func writeAlloc(w *term.Screen, a *nusav1.Allocation) {
	fmt.Fprintln(w, strings.Join([]string{w.Bold(term.ShortID(a.GetId())), cli.JobName(a.GetNamespace(), a.GetJob(), ""), instance(a), stateNow(w, a), "on " + nodeOf(a), "in " + a.GetRegion()}, term.Gap))
	t := term.NewTable("", "")
	add := func(name, value string) {
		if value != "" {
			t.Row(w.Faint(name), value)
		}
	}
	add("id", a.GetId())
	add("why", term.Why(a.GetReason(), a.GetMessage()))
	add("retry", term.OneLine(a.GetRetry().GetMessage()))
	add("placed", term.OneLine(a.GetPlacedBecause()))
	add("version", fmt.Sprintf("%d, attempt %d", a.GetJobVersion(), a.GetAttempt()+1))
	add("epoch", fmt.Sprintf("%d.%d", a.GetGeneration(), a.GetEpoch()))
	if a.GetCreated() != nil {
		add("created", w.Since(a.GetCreated())+" ago")
	}
	add("resources", resources(a.GetResources()))
	add("ports", ports(a.GetPorts()))
	t.WriteBody(w)
	for _, name := range slices.Sorted(maps.Keys(a.GetTasks())) {
		writeTask(w, name, a.GetTasks()[name])
	}
}

// reasonText says why an allocation is in its state. An allocation whose task fails to
// start again and again stays in the state starting, without a reason. In that case
// reasonText returns the reason of the task.
func reasonText(a *nusav1.Allocation) string {
	if text := term.Why(a.GetReason(), a.GetMessage()); text != "" || a.GetState() > nusav1.AllocState_ALLOC_STATE_STARTING {
		return text
	}
	for _, name := range slices.Sorted(maps.Keys(a.GetTasks())) {
		t := a.GetTasks()[name]
		if text := term.Why(t.GetReason(), t.GetMessage()); text != "" {
			return "task " + name + ", " + term.Plural(t.GetRestarts(), "restart") + ": " + text
		}
	}
	return ""
}

func writeTask(w *term.Screen, name string, t *nusav1.TaskState) {
	line := []string{w.Bold("task " + name), w.State(term.Word(t.GetState()))}
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
		line = append(line, fmt.Sprintf("started %s ago, run %d", w.Since(t.GetStarted()), t.GetRun()))
	}
	if t.GetRestarts() > 0 {
		line = append(line, term.Plural(t.GetRestarts(), "restart"))
	}
	if r := term.Why(t.GetReason(), t.GetMessage()); r != "" {
		line = append(line, r)
	}
	fmt.Fprintf(w, "\n%s\n", strings.Join(line, term.Gap))
	if k := t.GetCheck(); k != nil && (t.GetState() < nusav1.AllocState_ALLOC_STATE_COMPLETE || k.GetState() == nusav1.HealthState_HEALTH_STATE_UNHEALTHY) {
		fmt.Fprintln(w, checkText(w, k))
	}
	if len(t.GetEvents()) == 0 {
		return
	}
	events := term.NewTable(">", "", "")
	if n := t.GetEventsDropped(); n > 0 {
		events.Row("", "", w.Faint(term.Plural(int(n), "earlier event")+", no longer retained"))
	}
	for _, e := range t.GetEvents() {
		events.Row(w.Faint(w.Since(e.GetTime())+" ago"), e.GetType(), term.OneLine(e.GetMessage()))
	}
	events.WriteBody(w)
}

// checkText returns the result of a task's check, for example "check http :20001/healthz
// healthy for 5m  status 200".
func checkText(w *term.Screen, k *nusav1.CheckState) string {
	line := []string{w.Faint("check ") + term.OneLine(k.GetCheck())}
	now := w.State(term.Word(k.GetState()))
	if k.GetSince() != nil {
		now += " for " + w.Since(k.GetSince())
	}
	line = append(line, now)
	if k.GetMessage() != "" {
		said := term.OneLine(k.GetMessage())
		if k.GetFailures() > 0 {
			said += fmt.Sprintf(" (%s in a row)", term.Plural(k.GetFailures(), "failure"))
		}
		if k.GetLate() != nil {
			said += ", " + w.Wait(term.Age(k.GetLate())+" late")
		}
		line = append(line, said)
	}
	return strings.Join(line, term.Gap)
}

func resources(r *nusav1.Resources) string {
	if r == nil {
		return ""
	}
	parts := []string{term.Cores(r.GetCpuMilli()) + " cores", term.Size(r.GetMemoryBytes()) + " memory"}
	if r.GetDiskBytes() > 0 {
		parts = append(parts, term.Size(r.GetDiskBytes())+" disk")
	}
	if r.GetGpu().GetCount() > 0 {
		parts = append(parts, term.Plural(r.GetGpu().GetCount(), "GPU"))
	}
	return strings.Join(parts, ", ")
}

func stopCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "stop ID|JOB", Short: "Stop one allocation; the scheduler replaces it", Args: cli.Positional("ID|JOB"),
		Long: "Stops one allocation; the scheduler replaces it. (job stop stops a job.)\n\n" + instanceHelp,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			a, err := findAlloc(ctx, c, args[0])
			if err != nil {
				return err
			}
			a, err = c.Allocs().Stop(ctx, &nusav1.GetAllocationRequest{Id: a.GetId()})
			if err != nil {
				return err
			}
			return c.Print(a, func(w *term.Screen) {
				fmt.Fprintf(w, "%s (%s of %s) is stopping; another one replaces it\n", term.ShortID(a.GetId()), instance(a), cli.JobName(a.GetNamespace(), a.GetJob(), ""))
			})
		}),
	}
}
