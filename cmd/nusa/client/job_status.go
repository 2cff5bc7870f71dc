package client

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func jobStatus(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "status JOB", Short: "Show a job, where it is and what it waits for", Args: takes("JOB"),
		RunE: s.run(func(c *caller, args []string) error {
			ref, err := c.ref(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := c.call()
			defer cancel()
			j, err := c.jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref})
			if err != nil {
				return err
			}
			if c.output != "table" {
				return c.print(j, nil)
			}
			v := c.view()
			v.jobStatus(c.out, j)
			return c.statusAllocs(ctx, ref, j.GetStatus())
		}),
	}
}

const (
	// endedShown is how many allocations of a job that has ended are shown.
	endedShown = 10
	// endedAsked is how many of them are looked at: the server's most.
	endedAsked = 10_000
)

// statusAllocs shows a job's live allocations; of a job that has ended the
// latest ones.
func (c *caller) statusAllocs(ctx context.Context, ref *nusav1.JobRef, s *nusav1.JobStatus) error {
	req := &nusav1.ListAllocationsRequest{Job: ref}
	switch s.GetState() {
	case nusav1.JobState_JOB_STATE_COMPLETE, nusav1.JobState_JOB_STATE_FAILED, nusav1.JobState_JOB_STATE_STOPPED:
		req.All, req.Limit = true, endedAsked
	}
	resp, err := c.allocs().List(ctx, req)
	if err != nil {
		// The job's own answer stands; that its parts are not seen is said.
		c.warn("allocations: %s", oneLine(c.readable(err).Error()))
		return nil
	}
	c.partial(resp.GetErrors())
	allocs := resp.GetAllocations()
	if len(allocs) > 0 {
		c.printf("\n")
	}
	if !req.All {
		if len(allocs) > 0 {
			c.view().allocList(c.out, allocs, false)
		}
		if failing(s) {
			c.printf("\n%s\n", c.style.faint(fmt.Sprintf("%s alloc list --all --job %s shows those that failed", c.nusa, refArg(ref))))
		}
		return nil
	}
	if len(allocs) == 0 {
		return nil
	}
	slices.SortStableFunc(allocs, func(a, b *nusav1.Allocation) int {
		return b.GetCreated().AsTime().Compare(a.GetCreated().AsTime())
	})
	shown := allocs[:min(len(allocs), endedShown)]
	c.view().allocList(c.out, shown, false)
	if len(shown) < len(allocs) {
		c.printf("%s\n", c.style.faint(fmt.Sprintf("the latest %d of %d; %s alloc list --all --job %s shows all", len(shown), len(allocs), c.nusa, refArg(ref))))
	}
	return nil
}

// progress is a job's state on one line.
func (v view) progress(j *nusav1.Job) string {
	s := j.GetStatus()
	sum, regions := totals(s)
	parts := []string{v.state(word(s.GetState()))}
	for _, c := range []struct {
		n    int32
		what string
	}{
		{max(sum.Pending, sum.unowned), "pending"}, {sum.Starting, "starting"}, {sum.Running, "running"},
		{sum.Complete, "complete"}, {sum.Failed, "failed"}, {sum.Lost, "lost"}, {sum.Stopping, "stopping"},
	} {
		of := ""
		if c.what == "running" && sum.Stopping > 0 {
			of = fmt.Sprintf(" of %d", sum.desired)
		}
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d%s %s", c.n, of, v.state(c.what)))
		}
	}
	if r := sum.rollout(); r != "" {
		parts = append(parts, v.wait(r))
	}
	line := strings.Join(parts, "  ")
	if sum.unowned > 0 {
		line += fmt.Sprintf("  %d without a region", sum.unowned)
	}
	if regions != "" {
		line += "  on " + regions
	}
	if sum.alive() < sum.desired || sum.Starting > 0 {
		if p := pending(s); p != "" {
			line += "  " + v.faint("waits: "+p)
		}
	}
	return line
}

// pending is why instances wait: "3 regions: no node fits; 1 region: it is not
// connected".
func pending(s *nusav1.JobStatus) string {
	type kind struct{ text, what string }
	counts := map[kind]int32{}
	var order []kind
	for _, name := range slices.Sorted(maps.Keys(s.GetGroups())) {
		for _, p := range s.GetGroups()[name].GetPending() {
			text := reason.Text(p.GetReason())
			switch {
			case p.GetMessage() == "":
			case p.GetReason() == nusav1.Reason_REASON_BACKOFF:
				text = plain(p.GetMessage()) // what failed last
			case p.GetReason() == nusav1.Reason_REASON_NOT_HEALTHY_YET:
				text = why(p.GetReason(), p.GetMessage())
			case missingDriver(p) != "":
				text = "no node has the driver " + missingDriver(p)
			}
			k := kind{text, cmp.Or(p.GetWhat(), "instance")}
			if counts[k] == 0 {
				order = append(order, k)
			}
			counts[k] += p.GetCount()
		}
	}
	var parts []string
	for _, k := range order {
		parts = append(parts, fmt.Sprintf("%s: %s", plural(counts[k], k.what), k.text))
	}
	return strings.Join(parts, "; ")
}

// lacked finds the driver that nodes do not have, in their words.
var lacked = regexp.MustCompile(`has no driver ([a-z0-9-]+)`)

// missingDriver is the driver for want of which instances wait, "" when it is
// something else.
func missingDriver(p *nusav1.CountedReason) string {
	m := lacked.FindStringSubmatch(p.GetMessage())
	if p.GetReason() != nusav1.Reason_REASON_DRIVER_MISSING || m == nil {
		return ""
	}
	return m[1]
}

// driverNowhere is the driver that no region has for a job of which nothing is
// placed, "" when there is hope without another agent.
func driverNowhere(s *nusav1.JobStatus) string {
	name := ""
	for _, g := range s.GetGroups() {
		if len(g.GetPending()) == 0 || g.GetUnowned() == 0 {
			continue
		}
		for _, p := range g.GetPending() {
			if name = missingDriver(p); name == "" {
				return ""
			}
		}
	}
	return name
}

// failing says that instances are tried again after they failed.
func failing(s *nusav1.JobStatus) bool {
	for _, g := range s.GetGroups() {
		for _, p := range g.GetPending() {
			if p.GetReason() == nusav1.Reason_REASON_BACKOFF {
				return true
			}
		}
	}
	return false
}

func (v view) jobStatus(w io.Writer, j *nusav1.Job) {
	spec, s := j.GetSpec(), j.GetStatus()
	head := []string{v.bold(jobName(spec.GetNamespace(), spec.GetName(), j.GetRegion())), word(spec.GetType()), v.state(word(s.GetState())),
		fmt.Sprintf("version %d", j.GetVersion()), fmt.Sprintf("revision %d", j.GetRevision())}
	if j.GetSubmitted() != nil {
		head = append(head, "submitted "+v.since(j.GetSubmitted())+" ago")
	}
	fmt.Fprintln(w, strings.Join(head, gap))
	names := slices.Sorted(maps.Keys(s.GetGroups()))
	if m := plain(summary(s, names)); m != "" {
		fmt.Fprintln(w, m)
	}
	if r := staged(j); r != "" {
		fmt.Fprintln(w, v.wait(r))
	}
	if r := j.GetReverted(); r != nil {
		fmt.Fprintln(w, v.wait(fmt.Sprintf("taken back: this is as version %d was; %s", r.GetTo(), plain(r.GetWhy()))))
	}
	if len(s.GetGroups()) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable("GROUP", ">DESIRED", ">PENDING", ">STARTING", ">RUNNING", ">OUTDATED", ">STOPPING", ">COMPLETE", ">FAILED", ">STOPPED", ">LOST", ">NO REGION")
	for _, name := range names {
		g := s.GetGroups()[name]
		c := g.GetCounts()
		t.row(name, count(g.GetDesired()), count(c.GetPending()), count(c.GetStarting()), count(c.GetRunning()), count(c.GetOutdated()), count(c.GetStopping()), count(c.GetComplete()),
			count(c.GetFailed()), count(c.GetStopped()), count(c.GetLost()), count(g.GetUnowned()))
	}
	t.dropEmpty("PENDING", "STARTING", "OUTDATED", "STOPPING", "COMPLETE", "FAILED", "STOPPED", "LOST", "NO REGION")
	t.write(w, v.palette)
	v.notRunning(w, s, names)
	v.slots(w, s, names)
}

// summary is a job's message without the first reason that stands in the way,
// which is shown with the others. A region says that alone.
func summary(s *nusav1.JobStatus, groups []string) string {
	for _, name := range groups {
		if all := s.GetGroups()[name].GetPending(); len(all) > 0 {
			head, _, _ := strings.Cut(": "+s.GetMessage(), ": "+name+": "+reason.Text(all[0].GetReason()))
			return strings.TrimPrefix(head, ": ")
		}
	}
	return s.GetMessage()
}

// notRunning are the counted reasons of all groups, what is the same together.
func (v view) notRunning(w io.Writer, s *nusav1.JobStatus, groups []string) {
	t := newTable("GROUP", "REGION", "COUNT", "WHY NOT RUNNING")
	first := map[string]int{}
	for _, name := range groups {
		g := s.GetGroups()[name]
		for _, p := range g.GetPending() {
			region, message, _ := strings.Cut(p.GetMessage(), ": ")
			if g.GetRegions()[region] == nil || p.GetWhat() == "region" {
				region, message = "", p.GetMessage()
			}
			because := why(p.GetReason(), message)
			if _, found := first[because]; !found {
				first[because] = len(first)
			}
			t.row(name, region, plural(p.GetCount(), cmp.Or(p.GetWhat(), "instance")), because)
		}
	}
	if len(t.rows) == 0 {
		return
	}
	slices.SortStableFunc(t.rows, func(a, b []string) int { return cmp.Compare(first[a[3]], first[b[3]]) })
	t.dropEmpty("REGION")
	t.ditto()
	fmt.Fprintln(w)
	t.write(w, v.palette)
}

// waits are counted reasons, one a line.
func (v view) waits(w io.Writer, head string, reasons []*nusav1.CountedReason) {
	for _, p := range reasons {
		fmt.Fprintf(w, "%s%s: %s\n", head, plural(p.GetCount(), cmp.Or(p.GetWhat(), "instance")), why(p.GetReason(), p.GetMessage()))
	}
}

func (v view) slots(w io.Writer, s *nusav1.JobStatus, groups []string) {
	t := newTable("SLOT", "REGION", "STATE", ">VERSION", "WHY")
	for _, name := range groups {
		for _, slot := range s.GetGroups()[name].GetSlots() {
			because := plain(slot.GetPlacedBecause())
			if r := why(slot.GetReason(), slot.GetMessage()); r != "" {
				because = r
			}
			t.row(slotName(slot), slot.GetRegion(), v.state(slotState(slot)), fmt.Sprint(slot.GetJobVersion()), because)
		}
	}
	if len(t.rows) == 0 {
		return
	}
	t.ditto()
	fmt.Fprintln(w)
	t.write(w, v.palette)
}

// unwanted: the slot is being taken back.
func unwanted(s *nusav1.Slot) bool {
	return s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_STOP || s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_REVOKE
}

func slotState(s *nusav1.Slot) string {
	state := word(s.GetState())
	if s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_STOP && s.GetState() != nusav1.SlotState_SLOT_STATE_STOPPED {
		return "stopping"
	}
	if s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_REVOKE && s.GetState() != nusav1.SlotState_SLOT_STATE_REVOKED {
		return "being revoked"
	}
	return state
}

// slotName is web[0-5], or web[3] for one instance.
func slotName(s *nusav1.Slot) string {
	if s.GetTo()-s.GetFrom() <= 1 {
		return fmt.Sprintf("%s[%d]", s.GetGroup(), s.GetFrom())
	}
	return fmt.Sprintf("%s[%d-%d]", s.GetGroup(), s.GetFrom(), s.GetTo()-1)
}
