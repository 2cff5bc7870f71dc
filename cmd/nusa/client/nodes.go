package client

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func nodeCommand() *cobra.Command {
	s := &settings{}
	c := noun("node", "Look at nodes and their history, drain, cordon and remove them",
		nodeList(s), nodeStatus(s), nodeDrain(s), nodeCordon(s, true), nodeCordon(s, false), nodeRemove(s), nodeHistory(s))
	s.bind(c)
	return c
}

func nodeList(s *settings) *cobra.Command {
	var pool string
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List nodes", Args: takes(),
		RunE: s.run(func(c *caller, _ []string) error {
			ctx, cancel := c.call()
			defer cancel()
			resp, err := c.nodes().List(ctx, &nusav1.ListNodesRequest{Region: c.region, Pool: pool})
			if err != nil {
				return err
			}
			c.partial(resp.GetErrors())
			return c.print(resp, func(w io.Writer) { c.view().nodeList(w, resp.GetNodes(), c.noNodes(pool, unseen(resp.GetErrors()))) })
		}),
	}
	s.bindRegion(c, "only this region's")
	c.Flags().StringVar(&pool, "pool", "", "only this pool's")
	return c
}

// noNodes says what was asked for in vain, and what to do next.
func (c *caller) noNodes(pool, unseen string) string {
	what := "no nodes"
	if pool != "" {
		what += " in pool " + pool
	}
	if c.region != "" {
		what += " in region " + c.region
	}
	what += unseen
	if what == "no nodes" {
		return fmt.Sprintf("no nodes; start an agent with: %s agent", c.nusa)
	}
	return fmt.Sprintf("%s; %s node list shows all", what, c.nusa)
}

func (v view) nodeList(w io.Writer, nodes []*nusav1.Node, none string) {
	if len(nodes) == 0 {
		fmt.Fprintln(w, none)
		return
	}
	t := newTable("NODE", "NAME", "REGION", "STATE", "POOL", ">CPU", ">MEMORY", ">CPU USED", ">MEMORY USED", ">ALLOCS", ">STATS")
	for _, n := range nodes {
		c, a := n.GetInventory().GetCapacity(), n.GetAllocated()
		cpuUsed, memUsed := "-", "-"
		if n.GetStats() != nil {
			cpuUsed, memUsed = percent(n.GetStats().GetCpu()), memoryUsed(n)
		}
		t.row(shortID(n.GetId()), n.GetName(), n.GetRegion(), v.nodeState(n), n.GetInventory().GetPool(),
			cores(a.GetCpuMilli())+"/"+cores(c.GetCpuMilli()), size(a.GetMemoryBytes())+"/"+size(c.GetMemoryBytes()),
			cpuUsed, memUsed, count(n.GetAllocations()), age(n.GetStatsAge()))
	}
	t.write(w, v.palette)
}

func memoryUsed(n *nusav1.Node) string {
	s := n.GetStats()
	total := s.GetMemoryUsedBytes() + s.GetMemoryAvailableBytes()
	if total == 0 {
		return "-"
	}
	return percent(float64(s.GetMemoryUsedBytes()) / float64(total))
}

func (v view) nodeState(n *nusav1.Node) string {
	parts := []string{v.state(word(n.GetState()))}
	if n.GetSilent() != nil {
		parts = append(parts, v.wait("silent "+age(n.GetSilent())))
	}
	if n.GetDraining() {
		parts = append(parts, v.wait("draining"))
	}
	if n.GetCordoned() {
		parts = append(parts, v.wait("cordoned"))
	}
	return strings.Join(parts, ", ")
}

func nodeStatus(s *settings) *cobra.Command {
	c := &cobra.Command{
		Use: "status NODE", Short: "Show a node: machine, drivers, use", Args: takes("NODE"),
		RunE: s.run(func(c *caller, args []string) error {
			ctx, cancel := c.call()
			defer cancel()
			n, err := c.nodes().Get(ctx, &nusav1.GetNodeRequest{Id: c.node(args[0]), Region: c.region})
			if err != nil {
				return err
			}
			return c.print(n, func(w io.Writer) { c.view().nodeStatus(w, n) })
		}),
	}
	s.bindRegion(c, "region of the node, when its name is not unique")
	return c
}

func (v view) nodeStatus(w io.Writer, n *nusav1.Node) {
	inv, f := n.GetInventory(), n.GetInventory().GetFacts()
	fmt.Fprintln(w, strings.Join([]string{v.bold(n.GetName()), shortID(n.GetId()), "in " + n.GetRegion(), v.nodeState(n)}, gap))
	t := newTable("", "")
	add := func(name, value string) {
		if strings.TrimSpace(value) != "" {
			t.row(v.faint(name), value)
		}
	}
	add("id", n.GetId())
	add("description", oneLine(inv.GetDescription()))
	add("address", n.GetAddress())
	add("pool", inv.GetPool())
	add("labels", labelText(inv.GetLabels()))
	add("version", inv.GetVersion())
	if n.GetRegistered() != nil {
		add("registered", v.since(n.GetRegistered())+" ago")
	}
	add("system", strings.Join(strings.Fields(strings.Join([]string{f.GetPlatform(), f.GetPlatformVersion(), f.GetOs(), f.GetKernel(), f.GetArch(), f.GetVirtualization()}, " ")), " "))
	if f.GetCpuCores() > 0 {
		add("cpu", fmt.Sprintf("%s, %d cores (%d physical), %.0f MHz", f.GetCpuModel(), f.GetCpuCores(), f.GetCpuPhysicalCores(), f.GetCpuMhz()))
		add("memory", fmt.Sprintf("%s, swap %s", size(f.GetMemoryBytes()), size(f.GetSwapBytes())))
	}
	if f.GetBootTime() != nil {
		add("booted", v.since(f.GetBootTime())+" ago")
	}
	for _, d := range f.GetDisks() {
		add("disk", fmt.Sprintf("%s %s on %s, %s", d.GetMount(), d.GetFsType(), d.GetDevice(), size(d.GetTotalBytes())))
	}
	for _, i := range f.GetNetworks() {
		add("network", strings.TrimSpace(i.GetName()+" "+strings.Join(i.GetAddresses(), " ")))
	}
	for _, g := range inv.GetGpus() {
		add("gpu", g.GetModel()+" "+size(g.GetMemoryBytes()))
	}
	if inv.GetSharedMachine() != "" {
		add("shared", "one of several agents on this machine; facts are of the machine, capacity is this agent's part")
	}
	t.writeBody(w, v.palette)
	v.drivers(w, inv.GetDrivers())
	v.nodeUse(w, n)
	v.leaving(w, n)
}

func (v view) drivers(w io.Writer, drivers []*nusav1.DriverInfo) {
	if len(drivers) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable("DRIVER", "HEALTH", "VERSION", "CAN", "MESSAGE")
	for _, d := range drivers {
		t.row(d.GetName(), v.health(d.GetHealthy()), d.GetVersion(), strings.Join(d.GetCapabilities(), " "), plain(d.GetMessage()))
	}
	t.dropEmpty("VERSION", "MESSAGE")
	t.write(w, v.palette)
}

func (v view) nodeUse(w io.Writer, n *nusav1.Node) {
	c, a, s := n.GetInventory().GetCapacity(), n.GetAllocated(), n.GetStats()
	cpu, memory, uses := "-", "-", "MACHINE USES"
	if s != nil {
		uses += " (" + age(n.GetStatsAge()) + " ago)"
		cpu = fmt.Sprintf("%s, load %.2f", percent(s.GetCpu()), s.GetLoad1())
		memory = fmt.Sprintf("%s of %s", size(s.GetMemoryUsedBytes()), size(s.GetMemoryUsedBytes()+s.GetMemoryAvailableBytes()))
	}
	fmt.Fprintln(w)
	t := newTable("", ">CAPACITY", ">ALLOCATED", uses)
	t.row("cpu", cores(c.GetCpuMilli()), cores(a.GetCpuMilli()), cpu)
	t.row("memory", size(c.GetMemoryBytes()), size(a.GetMemoryBytes()), memory)
	t.row("disk", size(c.GetDiskBytes()), size(a.GetDiskBytes()), diskUse(s))
	t.row("allocations", quota(n), count(n.GetAllocations()), networkUse(s))
	t.write(w, v.palette)
}

func quota(n *nusav1.Node) string {
	if q := n.GetInventory().GetInstanceQuota(); q > 0 {
		return count(q)
	}
	return "no limit"
}

func diskUse(s *nusav1.NodeStats) string {
	var parts []string
	for _, d := range s.GetDisks() {
		parts = append(parts, fmt.Sprintf("%s %s of %s", d.GetMount(), size(d.GetUsedBytes()), size(d.GetTotalBytes())))
	}
	return orDash(strings.Join(parts, ", "))
}

func networkUse(s *nusav1.NodeStats) string {
	var in, out float64
	for _, n := range s.GetNetworks() {
		in, out = in+n.GetInPerSecond(), out+n.GetOutPerSecond()
	}
	if s == nil {
		return ""
	}
	return fmt.Sprintf("network %s in, %s out", rate(in), rate(out))
}

func nodeDrain(s *settings) *cobra.Command {
	var off bool
	c := &cobra.Command{
		Use: "drain NODE", Short: "Move a node's work away; --off ends the drain", Args: takes("NODE"),
		Long: `Moves a node's work away, of each group at most update.max_parallel instances at a
time: one is stopped, and begins elsewhere. What fits on no other node of the
region is stopped all the same, and waits then or goes to another region; node
status says what of the work is left, and why it cannot move.`,
		RunE: s.run(func(c *caller, args []string) error {
			ctx, cancel := c.call()
			defer cancel()
			n, err := c.nodes().Drain(ctx, &nusav1.DrainNodeRequest{Id: c.node(args[0]), Region: c.region, Drain: !off})
			if err != nil {
				return err
			}
			return c.print(n, func(w io.Writer) {
				fmt.Fprintf(w, "node %s %s\n", nodeName(n), nodeNow(n, c.nusa))
				c.view().leaving(w, n)
			})
		}),
	}
	s.bindRegion(c, "region of the node, when its name is not unique")
	c.Flags().BoolVar(&off, "off", false, "end the drain")
	return c
}

// nodeNow is what a node does with work at present: lifting one hindrance may
// leave another.
func nodeNow(n *nusav1.Node, nusa string) string {
	var parts []string
	if n.GetDraining() {
		left := "nothing is left on it"
		if n.GetAllocations() > 0 {
			left = plural(n.GetAllocations(), "allocation") + " to move"
			if n.GetState() != nusav1.NodeState_NODE_STATE_LOST { // else it is the node that holds them up
				left += unfit(n.GetLeaving())
			}
		}
		parts = append(parts, fmt.Sprintf("is draining: %s (%s node drain %s --off ends that)", left, nusa, n.GetName()))
	}
	if n.GetCordoned() {
		is, then := "takes no new work", "; what runs there goes on"
		if n.GetDraining() {
			is, then = "is cordoned", ""
		}
		parts = append(parts, fmt.Sprintf("%s (%s node uncordon %s ends that)%s", is, nusa, n.GetName(), then))
	}
	if s := n.GetState(); s != nusav1.NodeState_NODE_STATE_READY && s != nusav1.NodeState_NODE_STATE_UNSPECIFIED {
		parts = append(parts, "is "+word(s)+" and takes no work until it is back")
	}
	if len(parts) == 0 {
		return "takes new work"
	}
	return strings.Join(parts, ", and ")
}

// unfit says for how many allocations no other node of the region has room, if
// there are such, and what becomes of them.
func unfit(leaving []*nusav1.LeavingGroup) string {
	none := int32(0)
	for _, g := range leaving {
		none += g.GetCount() - g.GetFits()
	}
	if none == 0 {
		return ""
	}
	return fmt.Sprintf(", and the region's other nodes have no room for %d now: these are stopped all the same, update.max_parallel of a group at a time, and wait for room or go to another region", none)
}

// leaving says of each group that is to move away why it cannot.
func (v view) leaving(w io.Writer, n *nusav1.Node) {
	if len(n.GetLeaving()) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable("LEAVING", ">STILL THERE", ">FIT ELSEWHERE", "WHY NO MORE")
	for _, g := range n.GetLeaving() {
		t.row(g.GetNamespace()+"/"+g.GetJob()+" "+g.GetGroup(), count(g.GetCount()), count(g.GetFits()), plain(reason.WithMessage(g.GetReason(), g.GetMessage())))
	}
	t.dropEmpty("WHY NO MORE")
	t.write(w, v.palette)
}

func nodeName(n *nusav1.Node) string {
	return fmt.Sprintf("%s (%s in %s)", n.GetName(), shortID(n.GetId()), n.GetRegion())
}

func nodeCordon(s *settings, cordon bool) *cobra.Command {
	use, short := "cordon NODE", "Give a node no new work; uncordon ends that"
	if !cordon {
		use, short = "uncordon NODE", "Let a node take new work again"
	}
	c := &cobra.Command{
		Use: use, Short: short, Args: takes("NODE"),
		RunE: s.run(func(c *caller, args []string) error {
			ctx, cancel := c.call()
			defer cancel()
			n, err := c.nodes().Cordon(ctx, &nusav1.CordonNodeRequest{Id: c.node(args[0]), Region: c.region, Cordon: cordon})
			if err != nil {
				return err
			}
			return c.print(n, func(w io.Writer) { fmt.Fprintf(w, "node %s %s\n", nodeName(n), nodeNow(n, c.nusa)) })
		}),
	}
	s.bindRegion(c, "region of the node, when its name is not unique")
	return c
}

func nodeRemove(s *settings) *cobra.Command {
	c := &cobra.Command{
		Use: "remove NODE", Short: "Forget a node that is lost or has left, and will not come back", Args: takes("NODE"),
		Long: `Forgets a node that is lost or has left: what it is believed to run is lost from
then on, and replaced. Without this a node is forgotten once it is gone for 72
hours, unless it is cordoned or drained, or may run what only it or you can end:
a group with "replace: false" in disconnect.node. If its agent does come back,
it is a new node, and stops what it runs.`,
		RunE: s.run(func(c *caller, args []string) error {
			ctx, cancel := c.call()
			defer cancel()
			resp, err := c.nodes().Remove(ctx, &nusav1.RemoveNodeRequest{Id: c.node(args[0]), Region: c.region})
			if err != nil {
				return err
			}
			return c.print(resp, func(w io.Writer) { fmt.Fprintf(w, "node %s is removed\n", nodeName(resp.GetNode())) })
		}),
	}
	s.bindRegion(c, "region of the node, when its name is not unique")
	return c
}
