package node

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func statusCommand(s *cli.Settings) *cobra.Command {
	c := &cobra.Command{
		Use: "status NODE", Short: "Show a node: its machine, drivers and use", Args: cli.Positional("NODE"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			n, err := c.Nodes().Get(ctx, &nusav1.GetNodeRequest{Id: args[0], Region: c.Region})
			if err != nil {
				return err
			}
			return c.Print(n, func(w *term.Screen) { writeNode(w, n) })
		}),
	}
	s.BindRegion(c, "region of the node, when its name is not unique")
	return c
}

func writeNode(w *term.Screen, n *nusav1.Node) {
	inv, f := n.GetInventory(), n.GetInventory().GetFacts()
	fmt.Fprintln(w, strings.Join([]string{w.Bold(n.GetName()), term.ShortID(n.GetId()), "in " + n.GetRegion(), State(w, n)}, term.Gap))
	t := term.NewTable("", "")
	add := func(name, value string) {
		if strings.TrimSpace(value) != "" {
			t.Row(w.Faint(name), value)
		}
	}
	add("id", n.GetId())
	add("description", term.OneLine(inv.GetDescription()))
	add("address", n.GetAddress())
	add("pool", inv.GetPool())
	add("labels", term.LabelText(inv.GetLabels()))
	add("version", inv.GetVersion())
	if n.GetRegistered() != nil {
		add("registered", w.Since(n.GetRegistered())+" ago")
	}
	add("system", strings.Join(strings.Fields(strings.Join([]string{f.GetPlatform(), f.GetPlatformVersion(), f.GetOs(), f.GetKernel(), f.GetArch(), f.GetVirtualization()}, " ")), " "))
	if f.GetCpuCores() > 0 {
		add("cpu", fmt.Sprintf("%s, %d cores (%d physical), %.0f MHz", f.GetCpuModel(), f.GetCpuCores(), f.GetCpuPhysicalCores(), f.GetCpuMhz()))
		add("memory", fmt.Sprintf("%s, swap %s", term.Size(f.GetMemoryBytes()), term.Size(f.GetSwapBytes())))
	}
	if f.GetBootTime() != nil {
		add("booted", w.Since(f.GetBootTime())+" ago")
	}
	for _, d := range f.GetDisks() {
		add("disk", fmt.Sprintf("%s %s on %s, %s", d.GetMount(), d.GetFsType(), d.GetDevice(), term.Size(d.GetTotalBytes())))
	}
	for _, i := range f.GetNetworks() {
		add("network", strings.TrimSpace(i.GetName()+" "+strings.Join(i.GetAddresses(), " ")))
	}
	if inv.GetSharedMachine() != "" {
		add("shared", "several agents share the machine: capacity is this agent's part")
	}
	t.WriteBody(w)
	writeDrivers(w, inv.GetDrivers())
	writeGPUs(w, n)
	writeUsage(w, n)
	if d := n.GetDrain(); d != nil {
		fmt.Fprintf(w, "\ndrain: %s to move%s\n", term.Plural(toLeave(n), "allocation"), drainLimits(d))
	}
	writeLeaving(w, n)
}

func writeDrivers(w *term.Screen, drivers []*nusav1.DriverInfo) {
	if len(drivers) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := term.NewTable("DRIVER", "HEALTH", "VERSION", "CAN", "#MESSAGE")
	for _, d := range drivers {
		t.Row(d.GetName(), w.Health(d.GetHealthy()), d.GetVersion(), strings.Join(d.GetCapabilities(), " "), term.OneLine(d.GetMessage()))
	}
	t.DropEmpty("VERSION", "MESSAGE")
	t.Narrow(w.Width, "CAN")
	t.Write(w)
}

// writeGPUs writes the accelerators of a node and who has them.
func writeGPUs(w *term.Screen, n *nusav1.Node) {
	inv := n.GetInventory()
	if len(inv.GetGpus())+len(inv.GetUnusableGpus()) == 0 {
		return
	}
	uses := map[string][]*nusav1.GPUUse{}
	for _, u := range n.GetGpuUses() {
		uses[u.GetDevice()] = append(uses[u.GetDevice()], u)
	}
	fmt.Fprintln(w)
	t := term.NewTable("GPU", "MODEL", ">MEMORY", "ADDRESS", "USED BY")
	for _, g := range inv.GetGpus() {
		id, rest := g.GetId(), []string{g.GetModel(), gpuMemory(g), g.GetAddress()}
		for i, u := range append(uses[g.GetId()], nil) {
			switch {
			case u != nil:
				rest = append(rest, gpuUse(u))
			case i > 0:
				continue
			default:
				rest = append(rest, w.Faint("free"))
			}
			t.Row(append([]string{shortGPU(id)}, rest...)...)
			id, rest = "", []string{"", "", ""}
		}
	}
	for _, g := range inv.GetUnusableGpus() {
		t.Row(shortGPU(g.GetId()), g.GetModel(), gpuMemory(g), g.GetAddress(), w.Bad("not offered: "+term.OneLine(g.GetProblem())))
	}
	t.DropEmpty("MEMORY", "ADDRESS")
	t.Narrow(w.Width, "USED BY")
	t.Write(w)
}

// shortGPU shortens the id of an accelerator: GPU-5b1c2d3e for GPU-5b1c2d3e-….
func shortGPU(id string) string {
	const shown = len("GPU-5b1c2d3e")
	return id[:min(len(id), shown)]
}

func gpuMemory(g *nusav1.GPUDevice) string {
	if g.GetMemoryBytes() == 0 {
		return ""
	}
	return term.Size(g.GetMemoryBytes())
}

// gpuUse returns who has an accelerator, for example "default/web/a[0] 25%  5b1c2d3e".
func gpuUse(u *nusav1.GPUUse) string {
	text := fmt.Sprintf("%s/%s/%s[%d]", u.GetNamespace(), u.GetJob(), u.GetGroup(), u.GetIndex())
	if u.GetShareMilli() < 1000 {
		text += " " + strconv.FormatFloat(float64(u.GetShareMilli())/10, 'f', -1, 64) + "%"
	}
	return text + term.Gap + term.ShortID(u.GetAllocation())
}

func writeUsage(w *term.Screen, n *nusav1.Node) {
	c, a, s := n.GetInventory().GetCapacity(), n.GetAllocated(), n.GetStats()
	cpu, memory, uses := "-", "-", "USED"
	if s != nil {
		uses += " (" + term.Age(n.GetStatsAge()) + " ago)"
		cpu = fmt.Sprintf("%s, load %.2f", term.Percent(s.GetCpu()), s.GetLoad1())
		memory = fmt.Sprintf("%s of %s", term.Size(s.GetMemoryUsedBytes()), term.Size(s.GetMemoryUsedBytes()+s.GetMemoryAvailableBytes()))
	}
	fmt.Fprintln(w)
	t := term.NewTable("", ">CAPACITY", ">RESERVED", uses)
	t.Row("cpu", term.Cores(c.GetCpuMilli()), term.Cores(a.GetCpuMilli()), cpu)
	t.Row("memory", term.Size(c.GetMemoryBytes()), term.Size(a.GetMemoryBytes()), memory)
	t.Row("disk", term.Size(c.GetDiskBytes()), term.Size(a.GetDiskBytes()), diskUse(s))
	t.Row("allocations", quotaText(n), term.Count(n.GetAllocations()), networkUse(s))
	t.Write(w)
}

func quotaText(n *nusav1.Node) string {
	if q := n.GetInventory().GetInstanceQuota(); q > 0 {
		return term.Count(q)
	}
	return "no limit"
}

func diskUse(s *nusav1.NodeStats) string {
	var parts []string
	for _, d := range s.GetDisks() {
		parts = append(parts, fmt.Sprintf("%s %s of %s", d.GetMount(), term.Size(d.GetUsedBytes()), term.Size(d.GetTotalBytes())))
	}
	return term.OrDash(strings.Join(parts, ", "))
}

func networkUse(s *nusav1.NodeStats) string {
	var in, out float64
	for _, n := range s.GetNetworks() {
		in, out = in+n.GetInPerSecond(), out+n.GetOutPerSecond()
	}
	if s == nil {
		return ""
	}
	return fmt.Sprintf("network %s in, %s out", term.Rate(in), term.Rate(out))
}

func fullName(n *nusav1.Node) string {
	if n.GetId() == "" { // it has joined, and was never registered
		return fmt.Sprintf("%s (in %s)", n.GetName(), n.GetRegion())
	}
	return fmt.Sprintf("%s (%s in %s)", n.GetName(), term.ShortID(n.GetId()), n.GetRegion())
}
