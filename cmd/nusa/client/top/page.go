package top

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/overview/model"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// page is what the command shows, and how.
type page struct {
	m model.Model
	// title is the first word of the page. Empty: nusa top.
	title string
	// ahead is by how much the clock of the server is ahead of the one here.
	ahead time.Duration
	// order is the index in orders. reverse turns it round.
	order   int
	reverse bool
	// from is the first line of the table that is shown. lines are those of the table when it was last
	// written, and room are those of them that fit.
	from, lines, room int
	// notice says why the state may be old. Usually empty.
	notice string
}

// orders are the orders of the regions. Numbers begin with the greatest.
var orders = []string{"name", "state", "cpu", "memory", "reserved", "nodes", "allocs", "queue"}

// apply applies a message that arrived at a time.
func (p *page) apply(u *nusav1.OverviewUpdate, now time.Time) {
	p.m.Apply(u)
	if at := u.GetHead().GetNow(); at != nil {
		p.ahead = at.AsTime().Sub(now)
	}
}

// maxLines bounds the alarms, due changes and errors of a page, each.
const maxLines = 4

// write writes the page. height is that of the terminal in lines, or 0 for all lines.
func (p *page) write(w *term.Screen, height int) {
	var top, table strings.Builder
	p.writeHead(w.Onto(&top))
	p.writeRegions(w.Onto(&table))
	lines := strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n")
	head, body := lines[:1], lines[1:]
	p.lines, p.room = len(body), len(body)
	foot := ""
	if height > 0 {
		used := strings.Count(top.String(), "\n") + len(head) + 1
		p.room = max(height-used-1, 1)
		p.scroll(0)
		body = body[p.from:min(p.from+p.room, len(body))]
		foot = w.Faint(p.keys(len(body))) + "\n"
	}
	io.WriteString(w, top.String()+strings.Join(slices.Concat(head, body), "\n")+"\n"+foot)
}

// keys is the last line on a terminal.
func (p *page) keys(shown int) string {
	by := orders[p.order]
	if p.reverse {
		by += ", reversed"
	}
	text := fmt.Sprintf("q end  s sort (%s)  r reverse", by)
	if shown < p.lines {
		text += fmt.Sprintf("  ↑ ↓ lines %d-%d of %d", p.from+1, p.from+shown, p.lines)
	}
	return text
}

// scroll moves the table by lines.
func (p *page) scroll(by int) { p.from = max(min(p.from+by, p.lines-p.room), 0) }

// writeHead writes what concerns all regions.
func (p *page) writeHead(w *term.Screen) {
	info := p.m.Head.GetInfo()
	who := "global server " + info.GetName()
	switch {
	case info.GetRole() == "regional":
		who = "server " + info.GetName() + " of " + info.GetRegion()
	case info.GetLeader():
		who += ", active"
	}
	fmt.Fprintf(w, "%s  %s  %s\n", w.Bold(cmp.Or(p.title, "nusa top")), term.OneLine(who), w.Now.Local().Format(time.TimeOnly))
	var ready, all, queue int32
	states := map[nusav1.RegionState]int32{}
	for _, r := range p.m.Regions() {
		ready, all, queue = ready+r.GetNodesReady(), all+r.GetNodesReady()+r.GetNodesLost(), queue+r.GetQueueLength()
		states[r.GetState()]++
	}
	fmt.Fprintf(w, "%s%s, %d of %d nodes ready\n%s%s\n", term.Plural(len(p.m.Regions()), "region"), p.counted(w, states), ready, all, p.jobs(w), waiting(w, queue))
	if alone := p.m.Head.GetAlone(); alone != nil && alone.AsDuration() > 0 {
		fmt.Fprintln(w, w.Wait("island: ")+"no contact with the global tier for "+term.Age(alone))
	}
	if p.notice != "" {
		fmt.Fprintln(w, w.Bad("not current: ")+term.OneLine(p.notice))
	}
	limited(w, alarmsOf(&p.m), "alarm", func(a string) { w.Note(w.Bad("alarm: "), cli.WithProgram(term.OneLine(a), w.Program)) })
	limited(w, p.m.Errors, "error", func(e *nusav1.PartialError) {
		w.Note(w.Wait(cmp.Or(e.GetRegion(), "a part")+" is missing: "), term.OneLine(e.GetMessage()))
	})
	limited(w, p.m.Due, "due change", func(d *nusav1.OverviewDue) {
		in := d.GetAt().AsTime().Sub(w.Now.Add(p.ahead))
		w.Note(w.Wait("due in "+countdown(in)+": "), term.OneLine(d.GetSubject()+": "+d.GetMessage()))
	})
	fmt.Fprintln(w)
}

// limited calls show for the first maxLines of all, and says how many are left.
func limited[T any](w *term.Screen, all []T, what string, show func(T)) {
	for _, x := range all[:min(len(all), maxLines)] {
		show(x)
	}
	if more := len(all) - maxLines; more > 0 {
		fmt.Fprintln(w, w.Faint(fmt.Sprintf("… %s; -o json has all", term.Plural(more, "more "+what))))
	}
}

// counted says how many regions are not connected, by state.
func (p *page) counted(w *term.Screen, states map[nusav1.RegionState]int32) string {
	var out []string
	for n := range int32(len(nusav1.RegionState_name)) {
		if s := nusav1.RegionState(n); states[s] > 0 && s != nusav1.RegionState_REGION_STATE_CONNECTED {
			out = append(out, fmt.Sprintf("%d %s", states[s], w.State(cmp.Or(term.Word(s), "not known here"))))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + strings.Join(out, ", ") + ")"
}

// jobs says how many jobs there are, by state.
func (p *page) jobs(w *term.Screen) string {
	if p.m.Counts == nil {
		return "the jobs are not counted yet"
	}
	text := term.Plural(p.m.Counts.GetTotal(), "job")
	var out []string
	for n := range int32(len(nusav1.JobState_name)) {
		s := nusav1.JobState(n)
		if count := p.m.Counts.GetStates()[s.String()]; count > 0 {
			out = append(out, fmt.Sprintf("%d %s", count, w.State(cmp.Or(term.Word(s), "unknown"))))
		}
	}
	if len(out) == 0 {
		return text
	}
	return text + " (" + strings.Join(out, ", ") + ")"
}

func waiting(w *term.Screen, queue int32) string {
	if queue == 0 {
		return ""
	}
	return "; " + w.Wait(term.Plural(queue, "instance")) + " without a node"
}

// countdown formats the time until something happens, for example 4:10 or 1:02:03.
func countdown(d time.Duration) string {
	s := int64(max(d, 0).Round(time.Second) / time.Second)
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// writeRegions writes the table of regions.
func (p *page) writeRegions(w *term.Screen) {
	t := term.NewTable("REGION", "STATE", ">NODES", ">ALLOCS", ">CPU", ">MEMORY", ">DISK", ">CPU RESERVED", ">MEM RESERVED", ">QUEUE", ">IN", ">OUT", "MASTER", "#MESSAGE")
	for _, r := range p.sorted() {
		nodes := term.Count(r.GetNodesReady())
		if r.GetNodesLost() > 0 {
			nodes += "/" + term.Count(r.GetNodesReady()+r.GetNodesLost())
		}
		cells := []string{term.OneLine(r.GetName()), state(w, r), nodes, term.Count(live(r)), "-", "-", "-",
			reserved(r.GetAllocated().GetCpuMilli(), r.GetCapacity().GetCpuMilli()), reserved(r.GetAllocated().GetMemoryBytes(), r.GetCapacity().GetMemoryBytes()), term.Count(r.GetQueueLength()), "-", "-"}
		if u := r.GetUtilisation(); u != nil {
			cells[4], cells[5], cells[6] = use(w, u.GetCpu()), use(w, u.GetMemory()), use(w, u.GetDisk())
			cells[10], cells[11] = term.Rate(u.GetNetworkIn()), term.Rate(u.GetNetworkOut())
		}
		t.Row(append(cells, term.OrDash(term.OneLine(r.GetMaster())), p.message(w, r))...)
	}
	t.DropEmpty("QUEUE", "MESSAGE", "IN", "OUT")
	t.Narrow(w.Width, "OUT", "IN", "DISK", "MASTER", "MEM RESERVED", "CPU RESERVED", "ALLOCS", "QUEUE")
	t.Write(w)
	switch {
	case len(t.Rows) > 0:
	case len(p.m.Head.GetServers()) == 0: // the head of a user who may read the topology has at least one
		fmt.Fprintf(w, "no region that this user may read: %s job list shows the jobs\n", w.Program)
	default:
		fmt.Fprintf(w, "no regions; define one with: %s region define FILE, or start its servers\n", w.Program)
	}
}

// state is the state of a region in words.
func state(w *term.Screen, r *nusav1.OverviewRegion) string {
	text := cmp.Or(w.State(term.Word(r.GetState())), w.Faint("not known here"))
	for _, also := range []struct {
		is   bool
		text string
	}{{r.GetIsland(), "island"}, {r.GetBanned(), "banned"}, {r.GetDraining(), "draining"}, {r.GetCordoned(), "cordoned"}} {
		if also.is {
			text += ", " + w.Wait(also.text)
		}
	}
	return text
}

// message is what an operator must know about a region.
func (p *page) message(w *term.Screen, r *nusav1.OverviewRegion) string {
	var parts []string
	if r.GetLastSeen() != nil {
		parts = append(parts, "seen "+term.Duration(w.Now.Add(p.ahead).Sub(r.GetLastSeen().AsTime()))+" ago")
	}
	if r.GetMoveAt() != nil {
		parts = append(parts, "would move in "+countdown(r.GetMoveAt().AsTime().Sub(w.Now.Add(p.ahead))))
	}
	if r.GetMessage() != "" {
		parts = append(parts, term.OneLine(r.GetMessage()))
	}
	return strings.Join(parts, "; ")
}

// use is a share of the capacity, in colour if little is left.
func use(w *term.Screen, share float64) string {
	switch text := term.Percent(share); {
	case share >= 0.95:
		return w.Bad(text)
	case share >= 0.8:
		return w.Wait(text)
	default:
		return text
	}
}

func reserved(part, whole int64) string {
	if whole <= 0 {
		return "-"
	}
	return term.Percent(float64(part) / float64(whole))
}

// live counts the allocations that have not ended.
func live(r *nusav1.OverviewRegion) int32 {
	a := r.GetAllocations()
	return a["pending"] + a["starting"] + a["running"]
}

// sorted returns the regions in the order of the page.
func (p *page) sorted() []*nusav1.OverviewRegion {
	all := p.m.Regions()
	share := func(r *nusav1.OverviewRegion) float64 {
		return float64(r.GetAllocated().GetCpuMilli()) / float64(max(r.GetCapacity().GetCpuMilli(), 1))
	}
	slices.SortStableFunc(all, func(a, b *nusav1.OverviewRegion) int {
		switch orders[p.order] {
		case "state":
			return cmp.Compare(trouble(b), trouble(a))
		case "cpu":
			return cmp.Compare(b.GetUtilisation().GetCpu(), a.GetUtilisation().GetCpu())
		case "memory":
			return cmp.Compare(b.GetUtilisation().GetMemory(), a.GetUtilisation().GetMemory())
		case "reserved":
			return cmp.Compare(share(b), share(a))
		case "nodes":
			return cmp.Compare(b.GetNodesReady(), a.GetNodesReady())
		case "allocs":
			return cmp.Compare(live(b), live(a))
		case "queue":
			return cmp.Compare(b.GetQueueLength(), a.GetQueueLength())
		}
		return 0 // the model sorts by name
	})
	if p.reverse {
		slices.Reverse(all)
	}
	return all
}

// trouble is greater for regions that need an operator more.
func trouble(r *nusav1.OverviewRegion) int {
	n := 0
	if r.GetState() != nusav1.RegionState_REGION_STATE_CONNECTED {
		n += 4
	}
	if r.GetMoveAt() != nil || r.GetLost() != nil {
		n += 2
	}
	if r.GetNodesLost() > 0 || r.GetMessage() != "" || r.GetDraining() || r.GetCordoned() {
		n++
	}
	return n
}
