package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/golden"
	"github.com/nusa-scheduler/nusa/topology"
)

// TestScripts runs testdata/*.txt. A script is a list of blocks: commands, then
// "----", then their output up to an empty line. Commands:
//
//	region NAME [fits=N] [fits.GROUP=N] [bins=NODESxCPU/MEM[@POOL],…] [labels=k:v,…]
//	       [drivers=NAME,…] [free=CPU/MEM] [capacity=CPU/MEM] [nodes=N] [age=DUR] [seq=N] [slots=REV]
//	       [cordoned] [draining[=no]] [healthy=DUR] [unsteady] [returning[=no]] [blocked=DUR] [behind[=no]] [level=N] [lost[=no]] [noreport] [disconnected=DUR] [neverconnected] [gone]   (again = changes it)
//	rtt A B [DUR] [stale|unreachable|none] [age=DUR]    (both directions)
//	locate NAME LAT LON
//	origins DOMAIN REGION…
//	job NAME [type=…] [v=N] [run=N] [prio=N] [rev=N] [stopped] [explain] [held=WHY] [paused] [stable=N]
//	      [order=REGION,…[*N]] [continue] [pause=DUR@REGION] [resumed]   (again = changes it)
//	group JOB/NAME [count=N] [cpu=N] [mem=N] [ports=…] [allow=SEL;…] [prefer=SEL*N;…]
//	      [near=SEL|@LAT/LON|domain=NAME,DUR[,required][,pN][,UNKNOWN][,wN];…] [spread=MIN-MAX] [divide=…] [none]
//	      [parallel=N] [patience=DUR] [down=N] [driver=NAME] [stop=DUR|no] (stop: the lease binds) [failback=MODE[*DUR]] [refused=REGION;…] [wasrefused=REGION;…]
//	colocate JOB GROUP,GROUP
//	answer JOB/GROUP FROM-TO REGION STATE [reason]
//	disconnected JOB/GROUP FROM-TO REGION NODE | reconnected JOB
//	summary JOB/GROUP REGION [v=N] [live=N] [pending=N] [failed=N] [busy=N] [ended=N] [open=N] [waiting=N]   (v and live as in the slots)
//	movable JOB/GROUP REGION [fence=N] [nothing]   (all its slots there) | movable JOB none
//	held JOB/GROUP REGION         (the region holds what it lost of the group)
//	returnto JOB/GROUP REGION     (the slots being revoked return there)
//	backoff DUR                   (of the latest refusal)
//	plan | plan terse | apply     (apply applies the latest plan) | returns REGION
//	slots [long] | wait DUR | breaches JOB   (wait lets time pass for the bounds)
func TestScripts(t *testing.T) {
	golden.Scripts(t, "testdata/*.txt", 10, runScript)
}

// runScript returns the script with its recorded output replaced by the present
// output.
func runScript(t *testing.T, text string) string {
	w := newWorld()
	var out, printed strings.Builder
	skipping := false
	for _, line := range strings.SplitAfter(text, "\n") {
		bare := strings.TrimSpace(line)
		switch {
		case skipping:
			if bare == "" {
				skipping = false
				out.WriteString(line)
			}
		case bare == "----":
			out.WriteString(line)
			out.WriteString(printed.String())
			printed.Reset()
			skipping = true
		default:
			out.WriteString(line)
			if bare != "" && !strings.HasPrefix(bare, "#") {
				if err := w.run(strings.Fields(bare), &printed); err != nil {
					t.Fatalf("%s: %v", bare, err)
				}
			}
		}
	}
	return out.String()
}

// world is a federation that applies plans, for scripts and property tests.
type world struct {
	regions  map[string]*Region
	fits     map[string]map[string]int // region → group name or "" → exact count
	places   map[string]*topology.Location
	edges    map[[2]string]topology.Edge
	jobs     []*Job
	returned []Returned
	origins  map[string][]string
	revision int64
	last     Plan
	taken    map[instance]string // region that the instance was revoked at, while it has no owner
}

func newWorld() *world {
	return &world{
		regions: map[string]*Region{}, fits: map[string]map[string]int{},
		places: map[string]*topology.Location{}, edges: map[[2]string]topology.Edge{}, origins: map[string][]string{}, revision: 100, taken: map[instance]string{},
	}
}

func (w *world) run(words []string, out *strings.Builder) error {
	args := words[1:]
	switch words[0] {
	case "region":
		return w.region(args[0], args[1:])
	case "rtt":
		return w.rtt(args)
	case "locate":
		lat, _ := strconv.ParseFloat(args[1], 64)
		lon, _ := strconv.ParseFloat(args[2], 64)
		w.places[args[0]] = &topology.Location{Latitude: lat, Longitude: lon, Name: args[0]}
	case "origins":
		w.origins[args[0]] = args[1:]
	case "job":
		return w.job(args[0], args[1:])
	case "group":
		return w.group(args[0], args[1:])
	case "colocate":
		j := w.find(args[0])
		j.Colocate = append(j.Colocate, strings.Split(args[1], ","))
	case "answer":
		return w.answer(args)
	case "disconnected":
		w.disconnected(args)
	case "movable", "held", "returnto":
		w.failover(words[0], args)
	case "reconnected":
		w.find(args[0]).Disconnected = nil
	case "summary":
		w.summary(args)
	case "backoff":
		backoff, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		w.returned[len(w.returned)-1].Backoff = backoff
	case "plan":
		s := w.snapshot()
		s.Terse = len(args) > 0 && args[0] == "terse"
		w.last = MakePlan(s)
		out.WriteString(w.last.String())
	case "returns":
		for _, r := range Returns(w.snapshot(), args[0]) {
			fmt.Fprintln(out, r)
		}
	case "apply":
		w.apply(w.last)
	case "wait", "breaches":
		return w.follow(args, out)
	case "slots":
		for _, j := range w.jobs {
			for _, s := range j.Slots {
				fmt.Fprint(out, s)
				if len(args) > 0 && args[0] == "long" {
					fmt.Fprintf(out, ": bound %v stop time %s unbound %v home %q return to %q", s.Bound, s.StopTime, s.Unbound, s.Home, s.ReturnTo)
					for _, f := range s.Former {
						fmt.Fprintf(out, ", former %s g%d fence %d hold %v may run %v", f.Region, f.Generation, f.Fence, f.Hold, f.MayRun)
					}
				}
				fmt.Fprintln(out)
			}
		}
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

// answer applies a region's answer as the placer's caller does: the slots change,
// and refusals are remembered.
func (w *world) answer(args []string) error {
	job, group, _ := strings.Cut(args[0], "/")
	first, last, ranged := strings.Cut(args[1], "-")
	from, _ := strconv.Atoi(first)
	to := from + 1
	if ranged {
		to, _ = strconv.Atoi(last)
		to++
	}
	j, state, reason := w.find(job), region.SlotState(args[3]), ""
	if len(args) > 4 {
		reason = args[4]
	}
	a := region.Answer{Namespace: j.Namespace, Job: job, Group: group, From: from, To: to, State: state, Reason: reason}
	for _, s := range j.Slots {
		if s.Group == group && s.Region == args[2] && s.From <= from && from < s.To {
			a.Generation = s.Generation
		}
		for _, f := range s.Former {
			if s.Group == group && f.Region == args[2] && s.From <= from && from < s.To {
				a.Generation = f.Generation
			}
		}
	}
	out := region.ApplyAnswer(j.slotsOf(group), args[2], a)
	if out.Ignored != "" {
		return fmt.Errorf("ignored: %s", out.Ignored)
	}
	w.revision++
	w.write(j, out.Changes)
	if g := j.group(group); state == region.Revoked && g != nil {
		g.Released = slices.DeleteFunc(g.Released, func(f Released) bool { return f.From < to && from < f.To })
		g.Released = append(g.Released, Released{Region: args[2], From: from, To: to, Version: out.ReleasedVersion})
	}
	if state == region.Rejected || state == region.Returned {
		r := Returned{
			Namespace: j.Namespace, Job: job, Group: group, Region: args[2], Reason: reason,
			ReportSequence: w.regions[args[2]].ReportSequence,
			Counts:         []region.CountedReason{{Reason: reason, Count: w.regions[args[2]].NodesReady, What: "node"}},
		}
		if g := j.group(group); g != nil {
			r.Ask = g.Ask.Hash()
		}
		w.returned = append(w.returned, r)
	}
	return nil
}

// failover changes slots and due slots as the failover of a lost region does.
func (w *world) failover(command string, args []string) {
	job, group, _ := strings.Cut(args[0], "/")
	j := w.find(job)
	if args[1] == "none" {
		j.Movable = nil
		return
	}
	for i := range j.Slots {
		s := &j.Slots[i]
		switch {
		case s.Group != group:
		case command == "held":
			for k := range s.Former {
				s.Former[k].Hold = s.Former[k].Hold || s.Former[k].Region == args[1]
			}
		case command == "returnto" && s.Desired == region.DesiredRevoke:
			s.ReturnTo = args[1]
		case command == "movable" && s.Region == args[1]:
			m := Movable{Group: group, Region: s.Region, From: s.From, To: s.To, Generation: s.Generation, Fence: 2}
			for _, a := range args[2:] {
				key, value, _ := strings.Cut(a, "=")
				fence, _ := strconv.ParseUint(value, 10, 64)
				if key == "fence" {
					m.Fence = fence
				}
				m.NothingRuns = m.NothingRuns || key == "nothing"
			}
			j.Movable = append(j.Movable, m)
		}
	}
}

// apply applies a plan as the placer's caller does: one transaction for each
// action.
func (w *world) apply(p Plan) {
	for _, a := range p.Actions {
		w.revision++
		w.write(w.find(a.Job), a.Changes())
	}
	for _, e := range p.RegionEnds {
		o := *w.find(e.Job).RegionOrder
		o.Ended = maps.Clone(o.Ended)
		if o.Ended == nil {
			o.Ended = map[string]string{}
		}
		o.Ended[e.Region] = e.Failed
		w.find(e.Job).RegionOrder = &o
	}
}

// write writes changes with their compares.
func (w *world) write(j *Job, changes []region.Change) {
	for _, c := range changes {
		i := slices.IndexFunc(j.Slots, func(s region.Slot) bool { return s.Key() == c.Slot.Key() })
		switch {
		case i < 0 && c.Slot.Revision != 0, i >= 0 && j.Slots[i].Revision != c.Slot.Revision:
			panic(fmt.Sprintf("compare of %s fails", c))
		case c.Delete:
			j.Slots = slices.Delete(j.Slots, i, i+1)
			continue
		case i < 0:
			j.Slots = append(j.Slots, region.Slot{})
			i = len(j.Slots) - 1
		}
		s := c.Slot
		s.Revision = w.revision
		if s.Generation == 0 {
			s.Generation = w.revision
		}
		j.Slots[i] = s
	}
	slices.SortFunc(j.Slots, func(a, b region.Slot) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.From, b.From), cmp.Compare(a.Region, b.Region))
	})
}

func (w *world) snapshot() Snapshot {
	s := Snapshot{Returned: w.returned, Origins: w.origins}
	var vertices []topology.Region
	for _, name := range slices.Sorted(maps.Keys(w.regions)) {
		r := *w.regions[name]
		r.Fits = map[uint64]int{}
		for _, j := range w.jobs {
			for _, g := range j.Groups {
				if n, ok := w.fits[name][g.Name]; ok {
					r.Fits[g.Ask.Hash()] = n
				} else if n, ok := w.fits[name][""]; ok {
					r.Fits[g.Ask.Hash()] = n
				}
			}
		}
		s.Regions = append(s.Regions, &r)
		vertices = append(vertices, topology.Region{Name: name, Location: w.places[name], Labels: r.Labels})
	}
	for _, j := range w.jobs {
		s.Jobs = append(s.Jobs, *j)
	}
	var edges []topology.Edge
	for _, k := range slices.SortedFunc(maps.Keys(w.edges), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		edges = append(edges, w.edges[k])
	}
	s.Topology = topology.NewView(vertices, edges)
	return s
}
