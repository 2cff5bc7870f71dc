package region

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
		Use: "status REGION", Short: "Show the report of a region: its age, capacity, and what still fits", Args: cli.Positional("REGION"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			r, err := c.Regions().Get(ctx, &nusav1.GetRegionRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return c.Print(r, func(w *term.Screen) { writeRegion(w, r) })
		}),
	}
}

func writeRegion(w *term.Screen, r *nusav1.Region) {
	d := r.GetDefinition()
	fmt.Fprintln(w, w.Bold(d.GetName())+term.Gap+State(w, r))
	t := term.NewTable("", "")
	add := func(name, value string) {
		if value != "" {
			t.Row(w.Faint(name), value)
		}
	}
	for _, n := range notes(w, r) {
		add("note", w.Wait(cli.WithProgram(n, w.Program)))
	}
	add("description", term.OneLine(d.GetDescription()))
	if l := d.GetLocation(); l != nil {
		add("location", strings.TrimSpace(fmt.Sprintf("%s %.2f,%.2f", l.GetName(), l.GetLatitude(), l.GetLongitude())))
	}
	add("labels", term.LabelText(d.GetLabels()))
	if r.GetState() != nusav1.RegionState_REGION_STATE_UNSPECIFIED { // the server of another region does not know who defined the region
		add("defined by", map[bool]string{true: "an operator", false: "itself"}[r.GetDefinedByOperator()])
	}
	if r.GetClusterId() != "" {
		add("cluster", fmt.Sprintf("%s, incarnation %d, term %d, fence %d", term.ShortID(r.GetClusterId()), r.GetIncarnation(), r.GetTerm(), r.GetFence()))
	}
	master := "master"
	if Disconnected(r) {
		master = "last master"
	}
	add(master, strings.TrimSpace(r.GetMaster()+" "+r.GetMasterAddress()))
	var known []*nusav1.RegionalServer
	for _, s := range r.GetServers() {
		if s.GetId() == "" && s.GetAddress() == "" { // other regions know only a probe address of a region's server
			add("probed at", s.GetProbeAddress())
			continue
		}
		known = append(known, s)
	}
	t.WriteBody(w)
	if len(known) > 0 {
		fmt.Fprintln(w)
		servers := term.NewTable("SERVER", "ROLE", "HEALTH", "ADDRESS", "VERSION")
		for _, s := range known {
			role, health := ServerState(w, r, s)
			servers.Row(s.GetId(), role, health, s.GetAddress(), s.GetVersion())
		}
		servers.Write(w)
	}
	writeReport(w, r)
}

// ServerState returns the role and the health of a server. Both are unknown while the
// region is disconnected.
func ServerState(w *term.Screen, r *nusav1.Region, s *nusav1.RegionalServer) (role, health string) {
	if Disconnected(r) {
		return "server", w.Wait("unknown")
	}
	return map[bool]string{true: "master", false: "follower"}[s.GetLeader()], w.Health(s.GetHealthy())
}

// ReportAge returns a text with the age of a region's report. The age is unknown if an
// earlier active global server received the report.
func ReportAge(r *nusav1.Region) string {
	switch {
	case r.GetReportAge() != nil:
		return "report of " + term.Age(r.GetReportAge()) + " ago"
	case !Disconnected(r):
		return "present report"
	}
	return "report of unknown age"
}

func writeReport(w *term.Screen, r *nusav1.Region) {
	rep := r.GetReport()
	if rep == nil {
		text := "no report yet"
		switch r.GetState() {
		case nusav1.RegionState_REGION_STATE_DEFINED:
			text += ": its servers, started with nusa regional --region " + r.GetDefinition().GetName() + " --global HOST:PORT, send them"
		case nusav1.RegionState_REGION_STATE_UNSPECIFIED:
			text = "no report here: a regional server has the report of its own region, a global server those of all regions"
		}
		fmt.Fprintln(w, "\n"+text)
		return
	}
	left := ""
	if n := rep.GetNodesLeft(); n > 0 {
		left = fmt.Sprintf(" %d left,", n)
	}
	fmt.Fprintln(w)
	w.Note(ReportAge(r)+": ", fmt.Sprintf("%d ready, %d lost,%s %d draining, %d cordoned nodes; %s queued; allocations: %s",
		rep.GetNodesReady(), rep.GetNodesLost(), left, rep.GetNodesDraining(), rep.GetNodesCordoned(),
		term.Plural(rep.GetQueueLength(), "instance"), allocCounts(rep.GetAllocations())))
	t := term.NewTable("", ">CAPACITY", ">RESERVED", ">UNRESERVED", ">USED")
	u, c, a, f := rep.GetUtilisation(), rep.GetCapacity(), rep.GetAllocated(), rep.GetFree()
	t.Row("cpu", term.Cores(c.GetCpuMilli()), term.Cores(a.GetCpuMilli()), term.Cores(f.GetCpuMilli()), term.Percent(u.GetCpu()))
	t.Row("memory", term.Size(c.GetMemoryBytes()), term.Size(a.GetMemoryBytes()), term.Size(f.GetMemoryBytes()), term.Percent(u.GetMemory()))
	t.Row("disk", term.Size(c.GetDiskBytes()), term.Size(a.GetDiskBytes()), term.Size(f.GetDiskBytes()), term.Percent(u.GetDisk()))
	t.Row("network", "", "", "", term.Rate(u.GetNetworkIn())+" in, "+term.Rate(u.GetNetworkOut())+" out")
	t.Write(w)
	if bins := rep.GetShape().GetBins(); len(bins) > 0 {
		fmt.Fprintf(w, "\n%s: nodes with at least this unreserved\n", w.Bold("shape"))
		shape := term.NewTable(">NODES", ">CPU", ">MEMORY", ">DISK", "POOL")
		for _, b := range bins {
			shape.Row(term.Count(b.GetNodes()), term.Cores(b.GetFree().GetCpuMilli()), term.Size(b.GetFree().GetMemoryBytes()), term.Size(b.GetFree().GetDiskBytes()), b.GetPool())
		}
		shape.Write(w)
	}
}

func allocCounts(m map[string]int32) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if m[k] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", m[k], k))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
