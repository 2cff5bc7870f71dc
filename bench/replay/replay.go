package replay

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/bench/emulate"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/apportion"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// nearBound is max_rtt of a job's near rule.
	nearBound = 60 * time.Millisecond
	// sizes is the number of different sizes of regions. The largest region has about
	// sizes times as many nodes as the smallest.
	sizes = 4
	// spreadOver is the number of regions of a job with a spread rule.
	spreadOver = 3
	groupName  = "g"
	maxRegions = topo.MaxRegions // a federation has no more
	// afterwards is the time that is replayed after the last arrival.
	afterwards = time.Minute
)

// Options of a replay.
type Options struct {
	Regions int
	// Load is the greatest demand of the trace as a share of the capacity of all regions.
	Load float64
	// Report is the time between two reports of a region.
	Report time.Duration
	// Progress shows a line of text. It may be nil.
	Progress func(string)
}

// Validate returns an error that names the flag of the first invalid option.
func (o *Options) Validate() error {
	switch {
	case o.Regions < 1 || o.Regions > maxRegions:
		return fmt.Errorf("--regions: %d is not 1..%d", o.Regions, maxRegions)
	case !(o.Load >= 0.01 && o.Load <= 10):
		return fmt.Errorf("--load: %g is not 0.01..10", o.Load)
	case o.Report < 100*time.Millisecond || o.Report > time.Hour:
		return fmt.Errorf("--report: %s is not 100ms..1h", o.Report)
	}
	return nil
}

// job is a job of the trace.
type job struct {
	place.Job
	arrival time.Duration
	lasts   []time.Duration // how long each instance runs; 0 = beyond the end of the trace
	target  string          // the region of a required near rule; empty = no such rule
	placed  int
	// fitsSince is the time since which the job has waited although a region has room; -1
	// = no region has room, or the job does not wait.
	fitsSince time.Duration
}

// end is the end of an instance: its time, where the instance runs, and what it reserves.
type end struct {
	at         time.Duration
	cell, node int
	ask        place.Ask
}

type ends []end

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].at < e[j].at }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(end)) }
func (e *ends) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// federation is the state of a replay.
type federation struct {
	o        Options
	cells    []*cell
	regions  []*place.Region // the regions of cells, sorted by name
	known    *place.Index
	index    map[string]int
	view     *topology.View
	rtt      func(from, to int) time.Duration
	jobs     []*job
	waiting  []*job
	running  ends
	now      time.Duration
	revision int64
	returned []place.Returned
	asks     map[uint64]place.Ask // the asks whose fit counts regions report
	result   Result
	waits    []time.Duration
	planning time.Duration
}

// Run replays a trace and returns its figures.
func Run(ctx context.Context, requests []Request, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	f := &federation{o: o, index: map[string]int{}, known: place.NewIndex(), asks: map[uint64]place.Ask{}}
	if err := f.build(requests); err != nil {
		return nil, err
	}
	next := 0
	for last := f.jobs[len(f.jobs)-1].arrival + afterwards; ; {
		at, more := f.nextEvent(next)
		if !more || at > last {
			break
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f.now = at
		f.end()
		changed := f.report()
		for next < len(f.jobs) && f.jobs[next].arrival <= at {
			f.waiting = append(f.waiting, f.jobs[next])
			changed = true
			if next++; next%1000 == 0 && o.Progress != nil {
				o.Progress(fmt.Sprintf("%d of %d jobs", next, len(f.jobs)))
			}
		}
		if changed && len(f.waiting) > 0 {
			f.plan()
		}
	}
	return f.finish(), nil
}

// nextEvent returns the time of the next arrival, end or report.
func (f *federation) nextEvent(next int) (at time.Duration, more bool) {
	take := func(t time.Duration) {
		if !more || t < at {
			at, more = t, true
		}
	}
	if next < len(f.jobs) {
		take(f.jobs[next].arrival)
	}
	if len(f.running) > 0 {
		take(f.running[0].at)
	}
	for _, c := range f.cells {
		if c.report > 0 {
			take(c.report)
		}
	}
	return at, more
}

// build makes the jobs, and regions whose size follows from the greatest demand of the
// jobs.
func (f *federation) build(requests []Request) error {
	places := emulate.Places("", f.o.Regions)
	f.jobs = jobsOf(requests, places)
	peak := peakOf(requests)
	need := max(float64(peak.CPUMilli)/float64(nodeSize.CPUMilli), float64(peak.MemoryBytes)/float64(nodeSize.MemoryBytes)) / f.o.Load
	nodes := make([]apportion.Part, f.o.Regions)
	for i := range nodes {
		nodes[i] = apportion.Part{Share: int64(1 + i%sizes), Low: 1, High: 1 << 20}
	}
	total := max(f.o.Regions, int(need)+1)
	if total > 1<<20 {
		return errors.New("the trace needs more than a million nodes")
	}
	apportion.Divide(nodes, total)
	known, edges := make([]topology.Region, len(places)), []topology.Edge{}
	for i := range places {
		f.cells = append(f.cells, newCell(places[i].Name, nodes[i].Gets, f.o.Report*time.Duration(i)/time.Duration(len(places))))
		f.index[places[i].Name] = i
		f.regions = append(f.regions, f.cells[i].region)
		known[i] = topology.Region{Name: places[i].Name}
		for k := range places {
			if i != k {
				rtt := places[i].RTT(&places[k])
				edges = append(edges, topology.Edge{From: places[i].Name, To: places[k].Name, State: topology.OK, Source: topology.Measured,
					P50: rtt, P90: rtt, P99: rtt, Min: rtt, Samples: 20, Age: time.Second})
			}
		}
	}
	f.view = topology.NewView(known, edges)
	f.rtt = func(from, to int) time.Duration {
		if from == to {
			return 0
		}
		return places[from].RTT(&places[to])
	}
	f.result = Result{Regions: f.o.Regions, Nodes: total, Jobs: len(f.jobs), Instances: len(requests), Load: f.o.Load}
	return nil
}

// jobsOf makes the jobs. Equal requests of one batch are the instances of one job. A sixth
// of the jobs prefers to be near a region, and a sixth must be near a region. A sixth is
// spread over three regions, if such a job has three instances.
func jobsOf(requests []Request, places []emulate.Place) (out []*job) {
	type key struct {
		arrival     time.Duration
		batch       string
		cpu, memory int64
	}
	open := map[key]*job{}
	for n, r := range requests {
		k := key{r.Arrival, r.Batch, r.CPUMilli, r.MemoryBytes}
		j := open[k]
		if j == nil || r.Batch == "" {
			i := len(out)
			j = &job{arrival: r.Arrival, fitsSince: -1, Job: place.Job{
				Namespace: "default", Name: fmt.Sprintf("job-%06d", i), Version: 1, Type: place.Service, Priority: 50, Revision: int64(n + 1),
				Groups: []place.Group{{Name: groupName, Ask: place.Ask{CPUMilli: r.CPUMilli, MemoryBytes: r.MemoryBytes}}},
			}}
			target := places[i/6*7919%len(places)].Name
			if kind := i % 6; kind == 1 || kind == 4 {
				j.Groups[0].Regions.Near = []place.Near{{Selector: place.Selector{Name: target}, MaxRTT: nearBound, Required: kind == 4, Weight: 50}}
				if kind == 4 {
					j.target = target
				}
			}
			out, open[k] = append(out, j), j
		}
		j.lasts = append(j.lasts, r.Lasts)
	}
	for i, j := range out {
		g := &j.Groups[0]
		g.Count = len(j.lasts)
		if i%6 == 0 && g.Count >= spreadOver && len(places) >= spreadOver {
			g.Regions.SpreadMin, g.Regions.SpreadMax, g.Regions.Divide = spreadOver, spreadOver, place.DivideEven
		}
	}
	return out
}

// peakOf returns the greatest demand of a trace if no instance had to wait.
func peakOf(requests []Request) (peak place.Resources) {
	type step struct {
		at time.Duration
		r  *Request
		n  int64
	}
	var steps []step
	for i := range requests {
		r := &requests[i]
		steps = append(steps, step{r.Arrival, r, 1})
		if r.Lasts > 0 {
			steps = append(steps, step{r.Arrival + r.Lasts, r, -1})
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.n, b.n)) })
	var sum place.Resources
	for _, s := range steps {
		sum.CPUMilli += s.n * s.r.CPUMilli
		sum.MemoryBytes += s.n * s.r.MemoryBytes
		peak.CPUMilli, peak.MemoryBytes = max(peak.CPUMilli, sum.CPUMilli), max(peak.MemoryBytes, sum.MemoryBytes)
	}
	return peak
}

// end releases the resources of the instances that end now.
func (f *federation) end() {
	for len(f.running) > 0 && f.running[0].at <= f.now {
		e := heap.Pop(&f.running).(end)
		c := f.cells[e.cell]
		c.add(e.node, e.ask, 1)
		c.own(e.ask, -1)
		f.changes(c)
	}
}

// changes notes that a region has changed and reports at its next report time.
func (f *federation) changes(c *cell) {
	if c.report == 0 {
		c.report = ((f.now-c.lag)/f.o.Report+1)*f.o.Report + c.lag
	}
}

// report sends the reports that are due now. It returns whether there were any.
func (f *federation) report() (any bool) {
	for i, c := range f.cells {
		if c.report > 0 && c.report <= f.now {
			c.send(f.revision, f.asks)
			f.regions[i] = c.region
			any = true
		}
	}
	return any
}

// plan makes a plan for the waiting jobs that a region has room for, and applies the plan.
func (f *federation) plan() {
	s := place.Snapshot{Topology: f.view, Terse: true, Charged: true, Returned: f.returned, Regions: f.regions, Index: f.known}
	byName := map[string]*job{}
	room := f.room()
	for _, j := range f.waiting {
		if room.has(j) {
			s.Jobs = append(s.Jobs, j.Job)
			byName[j.Name] = j
		}
	}
	if len(s.Jobs) == 0 {
		return
	}
	began := time.Now()
	plan := place.MakePlan(s)
	f.planning += time.Since(began)
	f.result.Plans++
	for _, a := range plan.Actions {
		if a.Kind == place.Offer {
			f.offer(byName[a.Job], a)
		} else {
			f.result.Moves += a.To - a.From
		}
	}
	f.peak()
	f.waiting = slices.DeleteFunc(f.waiting, func(j *job) bool { return j.placed == len(j.lasts) })
	f.missed()
}

// offer offers instances to a region. The region returns those that fit on none of its
// nodes.
func (f *federation) offer(j *job, a place.Action) {
	i := f.index[a.Region]
	c, ask := f.cells[i], j.Groups[0].Ask
	f.revision++
	for n := a.From; n < a.To; n++ {
		c.own(ask, 1)
	}
	f.result.Worst(c)
	if j.target != "" && f.rtt(i, f.index[j.target]) > nearBound {
		f.result.NearBroken += a.To - a.From
	}
	for n := a.From; n < a.To; n++ {
		f.result.Decided++
		node := c.start(ask)
		if node < 0 {
			c.own(ask, -1)
			f.result.Returned++
			f.asks[ask.Hash()] = ask
			f.returned = append(f.returned, place.Returned{
				Namespace: j.Namespace, Job: j.Name, Group: groupName, Ask: ask.Hash(), Region: a.Region, ReportSequence: c.region.ReportSequence,
			})
			continue
		}
		slot := a.Changes()[0].Slot
		slot.From, slot.To, slot.Generation, slot.Revision = n, n+1, f.revision, f.revision
		at, _ := slices.BinarySearchFunc(j.Slots, slot, func(x, y region.Slot) int { return cmp.Compare(x.From, y.From) })
		j.Slots = slices.Insert(j.Slots, at, slot)
		for _, charge := range place.ChargesOf(&j.Job, &slot) {
			c.account.Put(c.region, charge)
		}
		if d := j.lasts[n]; d > 0 {
			heap.Push(&f.running, end{f.now + d, i, node, ask})
		}
		j.placed++
		f.waits = append(f.waits, f.now-j.arrival)
	}
	c.charge()
	f.regions[i] = c.region
	f.changes(c)
	// A later report of the region has an exact fit count of the ask, so what the region
	// returned before does not matter any more.
	f.returned = slices.DeleteFunc(f.returned, func(r place.Returned) bool {
		return f.cells[f.index[r.Region]].region.ReportSequence > r.ReportSequence+1
	})
}

// missed notes the longest time for which a job has waited although a region that is near
// enough has room.
func (f *federation) missed() {
	room := f.room()
	for _, j := range f.waiting {
		switch {
		case j.Groups[0].Regions.SpreadMin > 0 || !room.has(j):
			j.fitsSince = -1
		case j.fitsSince < 0:
			j.fitsSince = f.now
		}
		if j.fitsSince >= 0 {
			f.result.MissedS = max(f.result.MissedS, (f.now - j.fitsSince).Seconds())
		}
	}
}

// rooms finds the regions that have room for an ask.
type rooms struct {
	f    *federation
	room place.Room
	// at holds the numbers of the regions with room, by the hash of the ask.
	at map[uint64][]int
}

func (f *federation) room() rooms {
	return rooms{f, place.NewRoom(place.Snapshot{Regions: f.regions}), map[uint64][]int{}}
}

// has reports whether a region that is near enough has room for an instance of the job. A
// region that has returned such an instance since its latest report does not count.
func (r rooms) has(j *job) bool {
	ask := j.Groups[0].Ask
	hash := ask.Hash()
	at, known := r.at[hash]
	if !known {
		for i, c := range r.f.cells {
			returned := slices.ContainsFunc(r.f.returned, func(b place.Returned) bool {
				return b.Region == c.region.Name && b.Ask == hash && b.ReportSequence >= c.region.ReportSequence
			})
			if !returned && r.room.Fits(c.region.Name, place.Rival{Ask: ask}) {
				at = append(at, i)
			}
		}
		r.at[hash] = at
	}
	return slices.ContainsFunc(at, func(i int) bool { return j.target == "" || r.f.rtt(i, r.f.index[j.target]) <= nearBound })
}
