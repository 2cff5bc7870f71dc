package job

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/alloc"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func statusCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "status JOB", Short: "Show a job, where it is and what it waits for", Args: cli.Positional("JOB"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ref, err := c.Ref(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			j, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref})
			if err != nil {
				return err
			}
			if c.Output != "table" {
				return c.Print(j, nil)
			}
			v := c.Screen()
			writeStatus(v, j)
			if job.IsTemplate(j.GetSpec()) && !j.GetStopped() {
				if j.GetSpec().GetWorkflow() != nil {
					fmt.Fprintf(v, "\nruns: %s workflow list %s\n", c.Program, cli.RefArg(ref))
				}
				if j.GetSpec().GetWorkflow() == nil || j.GetSpec().GetSchedule() != nil {
					writeRuns(ctx, c, ref)
				}
				return nil
			}
			if err := writeStatusAllocs(ctx, c, ref, j); err != nil {
				return err
			}
			if j.GetRegion() == "" && inOneRegion(j.GetStatus()) {
				writeView(v, c.RegionOf(ctx))
			}
			return nil
		}),
	}
}

const (
	// endedShown bounds the allocations that are shown of a job that has ended.
	endedShown = 10
	// endedAsked bounds the allocations that are requested. A server returns no more.
	endedAsked = 10_000
)

// writeStatusAllocs writes the live allocations of a job. If the job has ended, it writes
// the latest allocations.
func writeStatusAllocs(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, j *nusav1.Job) error {
	s := j.GetStatus()
	req := &nusav1.ListAllocationsRequest{Job: ref}
	switch s.GetState() {
	case nusav1.JobState_JOB_STATE_COMPLETE, nusav1.JobState_JOB_STATE_FAILED, nusav1.JobState_JOB_STATE_STOPPED:
		req.All, req.Limit = true, endedAsked
	}
	resp, err := c.Allocs().List(ctx, req)
	if err != nil {
		// The status of the job has already been printed, so a list that fails is only a
		// warning.
		c.Warn("allocations: %s", term.OneLine(c.Explain(err).Error()))
		return nil
	}
	c.WarnPartial(resp.GetErrors())
	allocs := resp.GetAllocations()
	if !req.All {
		if len(allocs) > 0 {
			c.Printf("\n")
			alloc.Write(c.Screen(), allocs, false)
			writeSystemNote(c.Screen(), j)
		}
		if retriesFailures(s) {
			c.Printf("\n%s\n", c.Style.Faint(fmt.Sprintf("%s alloc list --all --job %s shows those that failed", c.Program, cli.RefArg(ref))))
		}
		writeWayBack(c, ref, j)
		return nil
	}
	writeEnded(c, ref, j, allocs)
	writeWayBack(c, ref, j)
	return nil
}

// writeWayBack says how a service whose version fails goes back, unless the version is its first.
func writeWayBack(c *cli.Session, ref *nusav1.JobRef, j *nusav1.Job) {
	fails := j.GetStatus().GetState() == nusav1.JobState_JOB_STATE_FAILED || retriesFailures(j.GetStatus())
	if fails && j.GetVersion() > 1 && j.GetSpec().GetType() != nusav1.JobType_JOB_TYPE_BATCH {
		c.Printf("%s\n", c.Style.Faint(fmt.Sprintf("%s job revert %s goes back to an earlier version", c.Program, cli.RefArg(ref))))
	}
}

// writeEnded writes the latest allocations of a job that has ended.
func writeEnded(c *cli.Session, ref *nusav1.JobRef, j *nusav1.Job, all []*nusav1.Allocation) {
	allocs := slices.DeleteFunc(slices.Clone(all), func(a *nusav1.Allocation) bool { return ofEarlierRun(j, a) })
	slices.SortStableFunc(allocs, func(a, b *nusav1.Allocation) int {
		return b.GetCreated().AsTime().Compare(a.GetCreated().AsTime())
	})
	shown := allocs[:min(len(allocs), endedShown)]
	if len(shown) > 0 {
		c.Printf("\n")
		alloc.Write(c.Screen(), shown, false)
	}
	var left []string
	if len(shown) < len(allocs) {
		left = append(left, fmt.Sprintf("the latest %d of %d", len(shown), len(allocs)))
	}
	if n := len(all) - len(allocs); n > 0 {
		left = append(left, fmt.Sprintf("without %d of earlier runs, or of a purged job of this name", n))
	}
	if len(left) > 0 {
		c.Printf("\n%s\n", c.Style.Faint(fmt.Sprintf("%s; %s alloc list --all --job %s shows all", strings.Join(left, ", "), c.Program, cli.RefArg(ref))))
	}
}

// inOneRegion reports whether the status names only one region, as the status from a
// regional server does.
func inOneRegion(s *nusav1.JobStatus) bool {
	names := map[string]bool{}
	for _, g := range s.GetGroups() {
		for name := range g.GetRegions() {
			names[name] = true
		}
	}
	return len(names) == 1
}

// ofEarlierRun reports whether an allocation belongs to an earlier run of a job, or to a
// purged job that had the same name.
func ofEarlierRun(j *nusav1.Job, a *nusav1.Allocation) bool {
	switch run := j.GetRun(); {
	case run <= 0:
		return false // a server of an earlier version sends no run
	case j.GetRegion() != "":
		return a.GetCreateIndex() < uint64(run)
	default: // a run may continue in slots of an earlier generation
		return a.GetGeneration() < run && a.GetCreated().AsTime().Before(j.GetSubmitted().AsTime())
	}
}

func writeStatus(w *term.Screen, j *nusav1.Job) {
	spec, s := j.GetSpec(), j.GetStatus()
	head := []string{w.Bold(cli.JobName(spec.GetNamespace(), spec.GetName(), j.GetRegion())), term.Word(spec.GetType()), w.State(stateText(s)),
		fmt.Sprintf("version %d", j.GetVersion()), fmt.Sprintf("revision %d", j.GetRevision())}
	if j.GetSubmitted() != nil {
		head = append(head, "submitted "+w.Since(j.GetSubmitted())+" ago")
	}
	fmt.Fprintln(w, strings.Join(head, term.Gap))
	names := slices.Sorted(maps.Keys(s.GetGroups()))
	if m := term.OneLine(headline(s)); m != "" {
		fmt.Fprintln(w, cli.WithProgram(m, w.Program))
	}
	if s.GetRollout() != nil {
		writeRollout(w, s.GetRollout())
	} else if r := rolloutLine(j); r != "" {
		fmt.Fprintln(w, w.Wait(r)) // a server of an earlier version, or of a region, sends no rollout
	}
	if text := inPlaceText(s.GetInPlace()); text != "" {
		fmt.Fprintf(w, "version %d changed resources %s\n", j.GetVersion(), text)
	}
	if j.GetReverted() != nil {
		fmt.Fprintln(w, w.Wait(revertedText(j)))
	}
	if len(s.GetGroups()) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := term.NewTable("GROUP", ">DESIRED", ">PENDING", ">STARTING", ">RUNNING", ">OUTDATED", ">STOPPING", ">COMPLETE", ">FAILED", ">STOPPED", ">LOST", ">UNKNOWN", ">HELD", ">NO REGION")
	for _, name := range names {
		g := s.GetGroups()[name]
		c := g.GetCounts()
		t.Row(name, term.Count(g.GetDesired()), term.Count(c.GetPending()), term.Count(c.GetStarting()), term.Count(c.GetRunning()), term.Count(c.GetOutdated()), term.Count(c.GetStopping()), term.Count(c.GetComplete()),
			term.Count(c.GetFailed()), term.Count(c.GetStopped()), term.Count(c.GetLost()), term.Count(c.GetUnknown()), term.Count(c.GetHeld()), term.Count(g.GetUnowned()))
	}
	t.DropEmpty("PENDING", "STARTING", "OUTDATED", "STOPPING", "COMPLETE", "FAILED", "STOPPED", "LOST", "UNKNOWN", "HELD", "NO REGION")
	t.Write(w)
	writeOverrides(w, j)
	writeNotRunning(w, s, names)
	writeUnknown(w, s, names)
	writeSlots(w, j, names)
}

// writeOverrides writes the overrides of the job, and how they are cleared.
func writeOverrides(w *term.Screen, j *nusav1.Job) {
	all := j.GetStatus().GetOverrides()
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := term.NewTable("REGION", ">HELD", "SET", "#OVERRIDE")
	for _, o := range all {
		t.Row(o.GetRegion(), term.Count(o.GetHeld()), w.Since(o.GetSet())+" ago", term.OneLine(jobstatus.OverrideText(o)))
	}
	t.Write(w)
	name := cli.RefArg(&nusav1.JobRef{Namespace: j.GetSpec().GetNamespace(), Name: j.GetSpec().GetName()})
	fmt.Fprintln(w, w.Faint(fmt.Sprintf("%s job override clear %s --region %s ends it", w.Program, name, all[0].GetRegion())))
}

// headline returns a job's state in one line. The job's message contains the first reason
// why instances wait. If a table shows all reasons, the line counts instances instead.
func headline(s *nusav1.JobStatus) string {
	sum, _ := totalsOf(s)
	unknown := jobstatus.UnknownText(jobstatus.Cuts(false, unknownOf(s)...))
	switch {
	case !slices.ContainsFunc(slices.Collect(maps.Values(s.GetGroups())), func(g *nusav1.GroupStatus) bool { return len(g.GetPending()) > 0 }):
		return s.GetMessage()
	case sum.GetFailed() > 0:
		return joined("; ", fmt.Sprintf("%d of %d instances failed", sum.GetFailed(), sum.desired), unknown)
	case sum.GetOutdated() > 0:
		return joined("; ", sum.rollout(), unknown)
	case sum.GetPending()+sum.GetLost() > 0:
		return joined("; ", jobstatus.Waiting(sum.InstanceCounts, sum.desired), unknown)
	}
	return unknown
}

// writeNotRunning writes a table of the counted reasons of all groups. Equal reasons follow
// one another.
func writeNotRunning(w *term.Screen, s *nusav1.JobStatus, groups []string) {
	t := term.NewTable("GROUP", "REGION", "COUNT", "#WHY NOT RUNNING")
	first := map[string]int{}
	for _, name := range groups {
		g := s.GetGroups()[name]
		for _, p := range g.GetPending() {
			region := p.GetRegion()
			message := strings.TrimPrefix(strings.TrimPrefix(p.GetMessage(), region), ": ")
			because := term.Why(p.GetReason(), message)
			if _, found := first[because]; !found {
				first[because] = len(first)
			}
			t.Row(name, region, term.Plural(p.GetCount(), cmp.Or(p.GetWhat(), "instance")), because)
		}
	}
	if len(t.Rows) == 0 {
		writeQueue(w, s, groups)
		return
	}
	slices.SortStableFunc(t.Rows, func(a, b []string) int { return cmp.Compare(first[a[3]], first[b[3]]) })
	t.DropEmpty("REGION")
	fmt.Fprintln(w)
	t.Write(w)
	writeQueue(w, s, groups)
}

// writeQueue writes the places of groups in the queue of their region, or of the global tier.
func writeQueue(w *term.Screen, s *nusav1.JobStatus, groups []string) {
	t := term.NewTable("GROUP", "QUEUE", ">BEFORE IT", ">CPU", ">MEMORY", "#HIGHER PRIORITY")
	for _, name := range groups {
		q := cmp.Or(s.GetGroups()[name].GetQueue(), s.GetGroups()[name].GetGlobalQueue())
		if q == nil {
			continue
		}
		higher := ""
		if q.GetHigher() > 0 {
			higher = term.Plural(int32(min(q.GetHigher(), 1<<31-1)), "instance")
		}
		t.Row(name, fmt.Sprintf("%d of %s", q.GetPosition(), term.Plural(q.GetGroups(), "group")), term.Plural(int32(min(q.GetHigher()+q.GetEarlier(), 1<<31-1)), "instance"),
			term.Cores(q.GetAsked().GetCpuMilli()), term.Size(q.GetAsked().GetMemoryBytes()), higher)
	}
	if len(t.Rows) == 0 {
		return
	}
	t.DropEmpty("HIGHER PRIORITY")
	fmt.Fprintln(w)
	t.Write(w)
}

// beforeText says in one line what stands before a group in a queue. It is empty without a place.
func beforeText(q *nusav1.QueuePlace) string {
	if q == nil {
		return ""
	}
	instances := func(n int64) string { return term.Plural(int32(min(n, 1<<31-1)), "instance") }
	text := fmt.Sprintf("%d of %s", q.GetPosition(), term.Plural(q.GetGroups(), "group"))
	if n := q.GetHigher() + q.GetEarlier(); n > 0 {
		text += fmt.Sprintf("; before it %s, which ask for %s CPU and %s", instances(n), term.Cores(q.GetAsked().GetCpuMilli()), term.Size(q.GetAsked().GetMemoryBytes()))
	}
	if q.GetHigher() > 0 {
		text += fmt.Sprintf("; %s with a higher priority", instances(q.GetHigher()))
	}
	return text
}

// writeCounted writes counted reasons, each on its own line.
func writeCounted(w *term.Screen, head string, reasons []*nusav1.CountedReason) {
	for _, p := range reasons {
		w.Note(head, term.Plural(p.GetCount(), cmp.Or(p.GetWhat(), "instance"))+": "+term.Why(p.GetReason(), p.GetMessage()))
	}
}
