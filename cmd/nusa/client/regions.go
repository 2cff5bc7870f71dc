package client

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func regionCommand() *cobra.Command {
	s := &settings{}
	c := noun("region", "Define regions, see what they can fit", regionDefine(s), regionList(s), regionStatus(s), regionVerify(s), regionCordon(s, true), regionCordon(s, false), regionRemove(s))
	s.bind(c)
	return c
}

func regionDefine(s *settings) *cobra.Command {
	var file string
	var check int64
	c := &cobra.Command{
		Use: "define FILE", Short: "Create regions, or replace their definitions", Args: takes("[FILE]"),
		Long:    "Reads region definitions, separated by ---, from a file (- is standard input). All are checked before the first is sent.",
		Example: "  nusa region define examples/region.yaml",
		RunE: s.run(func(c *caller, args []string) error {
			switch {
			case len(args) == 1 && file != "":
				return fmt.Errorf("%q and --file %s: name one file", args[0], file)
			case len(args) == 1:
				file = args[0]
			case file == "":
				return fmt.Errorf("FILE is missing: a file with definitions, or - for standard input; see %s --help", c.cmd.CommandPath())
			}
			data, err := c.readFile(file)
			if err != nil {
				return err
			}
			defs, err := job.ParseRegions(data, file)
			if err != nil {
				return err
			}
			if check != 0 && len(defs) > 1 {
				return fmt.Errorf("--check-revision is for one region, %s has %d", file, len(defs))
			}
			out := &nusav1.ListRegionsResponse{}
			for _, d := range defs {
				ctx, cancel := c.call()
				r, err := c.regions().Define(ctx, &nusav1.DefineRegionRequest{Definition: d, CheckRevision: check})
				cancel()
				if err != nil {
					return err
				}
				out.Regions = append(out.Regions, r)
				if c.output == "table" {
					state := c.style.state(word(r.GetState()))
					if r.GetState() == nusav1.RegionState_REGION_STATE_DEFINED {
						state = "its servers have never connected"
					}
					c.printf("region %s defined (revision %d): %s\n", d.GetName(), r.GetRevision(), state)
				}
			}
			return c.print(out, func(io.Writer) {})
		}),
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the same as FILE")
	c.Flags().Int64Var(&check, "check-revision", 0, "refuse unless the stored region's revision is this; -1: unless there is none")
	return c
}

func regionList(s *settings) *cobra.Command {
	var labels map[string]string
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List regions", Args: takes(),
		RunE: s.run(func(c *caller, _ []string) error {
			ctx, cancel := c.call()
			defer cancel()
			resp, err := c.regions().List(ctx, &nusav1.ListRegionsRequest{Labels: labels})
			if err != nil {
				return err
			}
			return c.print(resp, func(w io.Writer) {
				if len(resp.GetRegions()) == 0 && len(labels) > 0 {
					fmt.Fprintf(w, "no regions with the labels %s; %s region list shows all\n", labelText(labels), c.nusa)
					return
				}
				c.view().regionList(w, resp.GetRegions())
			})
		}),
	}
	c.Flags().StringToStringVarP(&labels, "label", "l", nil, "only regions with this label, KEY=VALUE")
	return c
}

func (v view) noRegions() string {
	return fmt.Sprintf("no regions; define one with: %s region define FILE, or start its servers", v.nusa)
}

func (v view) regionList(w io.Writer, regions []*nusav1.Region) {
	if len(regions) == 0 {
		fmt.Fprintln(w, v.noRegions())
		return
	}
	t := newTable("REGION", "STATE", ">NODES", ">ALLOCS", ">CPU", ">CPU FREE", ">MEMORY FREE", ">QUEUE", "MASTER", ">REPORT", "LOCATION")
	for _, r := range regions {
		rep := r.GetReport()
		cells := []string{"-", "-", "-", "-", "-", "-"}
		if rep != nil {
			cells = []string{nodesOf(rep), count(live(rep)), percent(rep.GetUtilisation().GetCpu()), cores(rep.GetFree().GetCpuMilli()), size(rep.GetFree().GetMemoryBytes()), count(rep.GetQueueLength())}
		}
		row := append([]string{r.GetDefinition().GetName(), v.regionState(r)}, cells...)
		t.row(append(row, masterOf(r), age(r.GetReportAge()), r.GetDefinition().GetLocation().GetName())...)
	}
	t.dropEmpty("QUEUE", "LOCATION")
	t.write(w, v.palette)
}

func (v view) regionState(r *nusav1.Region) string {
	state := v.state(word(r.GetState()))
	if state == "" {
		state = v.faint("not known here") // one region's server is asked about another
	}
	if r.GetCordoned() {
		state += ", " + v.wait("cordoned")
	}
	return state
}

// away says that what is known of a region's servers is not of now.
func away(r *nusav1.Region) bool {
	return r.GetState() != nusav1.RegionState_REGION_STATE_CONNECTED && r.GetState() != nusav1.RegionState_REGION_STATE_ISLAND
}

// masterOf is a region's master; nobody knows it while the region is away.
func masterOf(r *nusav1.Region) string {
	if away(r) {
		return "-"
	}
	return orDash(r.GetMaster())
}

// nodesOf is ready/all nodes.
func nodesOf(r *nusav1.RegionReport) string {
	if r.GetNodesLost() == 0 {
		return count(r.GetNodesReady())
	}
	return fmt.Sprintf("%d/%d", r.GetNodesReady(), r.GetNodesReady()+r.GetNodesLost())
}

// live counts allocations that have not ended.
func live(r *nusav1.RegionReport) int32 {
	a := r.GetAllocations()
	return a["pending"] + a["starting"] + a["running"]
}

func labelText(l map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(l)) {
		parts = append(parts, k+"="+l[k])
	}
	return strings.Join(parts, " ")
}

func regionStatus(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "status REGION", Short: "Show a region's aggregate, how old it is, and what still fits", Args: takes("REGION"),
		RunE: s.run(func(c *caller, args []string) error {
			ctx, cancel := c.call()
			defer cancel()
			r, err := c.regions().Get(ctx, &nusav1.GetRegionRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return c.print(r, func(w io.Writer) { c.view().regionStatus(w, r) })
		}),
	}
}

func (v view) regionStatus(w io.Writer, r *nusav1.Region) {
	d := r.GetDefinition()
	fmt.Fprintln(w, v.bold(d.GetName())+gap+v.regionState(r))
	t := newTable("", "")
	add := func(name, value string) {
		if value != "" {
			t.row(v.faint(name), value)
		}
	}
	add("description", oneLine(d.GetDescription()))
	if l := d.GetLocation(); l != nil {
		add("location", strings.TrimSpace(fmt.Sprintf("%s %.2f,%.2f", l.GetName(), l.GetLatitude(), l.GetLongitude())))
	}
	add("labels", labelText(d.GetLabels()))
	if r.GetState() != nusav1.RegionState_REGION_STATE_UNSPECIFIED { // another region's server does not know
		add("defined by", map[bool]string{true: "an operator", false: "itself"}[r.GetDefinedByOperator()])
	}
	if r.GetClusterId() != "" {
		add("cluster", fmt.Sprintf("%s, incarnation %d, term %d, fence %d", shortID(r.GetClusterId()), r.GetIncarnation(), r.GetTerm(), r.GetFence()))
	}
	master := "master"
	if away(r) {
		master = "last master"
	}
	add(master, strings.TrimSpace(r.GetMaster()+" "+r.GetMasterAddress()))
	var known []*nusav1.RegionalServer
	for _, s := range r.GetServers() {
		if s.GetId() == "" && s.GetAddress() == "" { // as regions know one another
			add("probed at", s.GetProbeAddress())
			continue
		}
		known = append(known, s)
	}
	t.writeBody(w, v.palette)
	if len(known) > 0 {
		fmt.Fprintln(w)
		servers := newTable("SERVER", "ROLE", "HEALTH", "ADDRESS", "VERSION")
		for _, s := range known {
			role, health := v.server(r, s)
			servers.row(s.GetId(), role, health, s.GetAddress(), s.GetVersion())
		}
		servers.write(w, v.palette)
	}
	v.report(w, r)
}

// server is a server's role and health; while its region is away both are
// unknown.
func (v view) server(r *nusav1.Region, s *nusav1.RegionalServer) (role, health string) {
	if away(r) {
		return "server", v.wait("unknown")
	}
	return map[bool]string{true: "master", false: "follower"}[s.GetLeader()], v.health(s.GetHealthy())
}

func (v view) health(healthy bool) string {
	if healthy {
		return v.good("healthy")
	}
	return v.bad("unhealthy")
}

// reportAge says how old a region's report is: of one of an earlier reign
// nobody knows.
func reportAge(r *nusav1.Region) string {
	switch {
	case r.GetReportAge() != nil:
		return "report of " + age(r.GetReportAge()) + " ago"
	case !away(r):
		return "present report"
	}
	return "report of unknown age"
}

func (v view) report(w io.Writer, r *nusav1.Region) {
	rep := r.GetReport()
	if rep == nil {
		text := "no report yet"
		switch r.GetState() {
		case nusav1.RegionState_REGION_STATE_DEFINED:
			text += ": its servers, started with nusa regional --region " + r.GetDefinition().GetName() + " --global HOST:PORT, send them"
		case nusav1.RegionState_REGION_STATE_UNSPECIFIED:
			text = "no report here: a regional server has its own region's, a global server everyone's"
		}
		fmt.Fprintln(w, "\n"+text)
		return
	}
	left := ""
	if n := rep.GetNodesLeft(); n > 0 {
		left = fmt.Sprintf(" %d left,", n)
	}
	fmt.Fprintf(w, "\n%s: %d ready, %d lost,%s %d draining, %d cordoned nodes; %s queued; allocations: %s\n",
		v.bold(reportAge(r)), rep.GetNodesReady(), rep.GetNodesLost(), left, rep.GetNodesDraining(), rep.GetNodesCordoned(),
		plural(rep.GetQueueLength(), "instance"), allocCounts(rep.GetAllocations()))
	t := newTable("", ">CAPACITY", ">ALLOCATED", ">FREE", ">USED")
	u, c, a, f := rep.GetUtilisation(), rep.GetCapacity(), rep.GetAllocated(), rep.GetFree()
	t.row("cpu", cores(c.GetCpuMilli()), cores(a.GetCpuMilli()), cores(f.GetCpuMilli()), percent(u.GetCpu()))
	t.row("memory", size(c.GetMemoryBytes()), size(a.GetMemoryBytes()), size(f.GetMemoryBytes()), percent(u.GetMemory()))
	t.row("disk", size(c.GetDiskBytes()), size(a.GetDiskBytes()), size(f.GetDiskBytes()), percent(u.GetDisk()))
	t.row("network", "", "", "", rate(u.GetNetworkIn())+" in, "+rate(u.GetNetworkOut())+" out")
	t.write(w, v.palette)
	if bins := rep.GetShape().GetBins(); len(bins) > 0 {
		fmt.Fprintf(w, "\n%s: nodes with at least this free\n", v.bold("shape"))
		shape := newTable(">NODES", ">CPU", ">MEMORY", ">DISK", "POOL")
		for _, b := range bins {
			shape.row(count(b.GetNodes()), cores(b.GetFree().GetCpuMilli()), size(b.GetFree().GetMemoryBytes()), size(b.GetFree().GetDiskBytes()), b.GetPool())
		}
		shape.write(w, v.palette)
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

func regionCordon(s *settings, cordon bool) *cobra.Command {
	use, short := "cordon REGION", "Give a region no new work; uncordon ends that"
	if !cordon {
		use, short = "uncordon REGION", "Let a region take new work again"
	}
	return &cobra.Command{
		Use: use, Short: short, Args: takes("REGION"),
		RunE: s.run(func(c *caller, args []string) error {
			ctx, cancel := c.call()
			defer cancel()
			r, err := c.regions().Cordon(ctx, &nusav1.CordonRegionRequest{Name: args[0], Cordon: cordon})
			if err != nil {
				return err
			}
			return c.print(r, func(w io.Writer) { fmt.Fprintf(w, "region %s %s\n", args[0], regionNow(r, c.nusa)) })
		}),
	}
}

// regionNow is what a region does with work at present.
func regionNow(r *nusav1.Region, nusa string) string {
	switch {
	case r.GetCordoned():
		return fmt.Sprintf("takes no new work (%s region uncordon %s ends that); what runs there goes on", nusa, r.GetDefinition().GetName())
	case away(r):
		return "is not cordoned, and takes new work when it is connected: now it is " + word(r.GetState())
	}
	return "takes new work"
}

func regionRemove(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "remove REGION", Aliases: []string{"rm"}, Short: "Forget a region that owns no work", Args: takes("REGION"),
		RunE: s.run(func(c *caller, args []string) error {
			ctx, cancel := c.call()
			defer cancel()
			resp, err := c.regions().Remove(ctx, &nusav1.GetRegionRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return c.print(resp, func(w io.Writer) { fmt.Fprintf(w, "region %s is forgotten\n", args[0]) })
		}),
	}
}
