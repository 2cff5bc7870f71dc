package sched

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// Place puts one instance on a node.
type Place struct {
	Key        state.GroupKey
	JobVersion int64
	Index      int32
	NodeID     string
	NodeName   string
	Epoch      int64 // epoch of the new allocation
	Resources  state.Resources
	Memory     int64 // the memory in Resources, if it is more than the group asks for; otherwise 0
	Ports      []state.PortGrant
	GPUs       []state.GPUGrant
	Why        string // one line with the terms of the score
	Score      float64
}

// Term is one part of a score. The score is the sum of its terms.
type Term struct {
	Name   string
	Value  float64
	Detail string
}

// Stop stops one allocation.
type Stop struct {
	AllocID  string
	Key      state.GroupKey
	Index    int32
	NodeName string
	Reason   state.Reason
	Message  string
	GiveUp   bool // the node is lost: the allocation becomes lost at once
}

// Resize gives an allocation the resources of another version of its job while it runs.
type Resize struct {
	AllocID    string
	Key        state.GroupKey
	Index      int32
	NodeName   string
	JobVersion int64
	From, To   state.Resources
}

// Proven says that an allocation has been up for state.Group.HealthyAfter.
type Proven struct {
	AllocID    string
	Key        state.GroupKey
	Index      int32
	UpUnixNano int64
}

// Range is the indices From ≤ i < To.
type Range struct{ From, To int32 }

// Unplaced are instances for which no node was found.
type Unplaced struct {
	Key        state.GroupKey
	JobVersion int64
	Generation int64
	System     bool
	Ranges     []Range // indices of one slot, ascending
	// Reason is the most frequent reason of the nodes that would fit otherwise, or
	// no_nodes.
	Reason  state.Reason
	Message string
	// Counts has the number of nodes for each reason, the most frequent reason first.
	Counts []state.Count
	// Never is true when no node of the region fits even if nothing runs on it.
	Never bool
}

// Waiting are instances that will be decided later.
type Waiting struct {
	Key    state.GroupKey
	Ranges []Range
	Reason state.Reason // backoff, node_lost, region_lease or parallel; declined only for system jobs
	// UntilUnixNano is when the first of them is due. 0: the time is not known, for example
	// until a node is back.
	UntilUnixNano int64
}

// Plan is the set of changes to make. It is a value that can be printed, checked, and
// turned into commands. Applying the plan involves no choices.
type Plan struct {
	Stops    []Stop
	Resizes  []Resize
	Places   []Place
	Proven   []Proven
	Unplaced []Unplaced
	Waiting  []Waiting
	// Reserved are the nodes that were reserved, so that later groups of the plan placed
	// nothing on them.
	Reserved []ReservedNode
	// Wake is the time from NowUnixNano until the next plan is due. 0: none is due.
	Wake time.Duration
	// More is true when MaxPlaces was reached. The next plan must then follow at once.
	More bool
}

// Empty reports whether the plan changes nothing.
func (p *Plan) Empty() bool {
	return len(p.Stops) == 0 && len(p.Resizes) == 0 && len(p.Places) == 0 && len(p.Proven) == 0
}

// String prints the plan, one line for each entry.
func (p *Plan) String() string {
	var b strings.Builder
	for _, s := range p.Stops {
		verb := "stop"
		if s.GiveUp {
			verb = "give up"
		}
		fmt.Fprintf(&b, "%s %s[%d] %s on %s: %s", verb, s.Key, s.Index, s.AllocID, s.NodeName, s.Reason)
		if s.Message != "" {
			fmt.Fprintf(&b, " (%s)", s.Message)
		}
		b.WriteByte('\n')
	}
	for _, r := range p.Resizes {
		fmt.Fprintf(&b, "in place %s[%d] %s on %s: v%d, %s\n", r.Key, r.Index, r.AllocID, r.NodeName, r.JobVersion, resizeText(r.From, r.To))
	}
	for i := range p.Places {
		pl := &p.Places[i]
		fmt.Fprintf(&b, "place %s[%d] v%d epoch %d on %s%s%s: %s\n",
			pl.Key, pl.Index, pl.JobVersion, pl.Epoch, pl.NodeName, portText(pl.Ports), gpuText(pl.GPUs), pl.Why)
	}
	for _, h := range p.Proven {
		fmt.Fprintf(&b, "proven %s[%d] %s\n", h.Key, h.Index, h.AllocID)
	}
	for i := range p.Unplaced {
		u := &p.Unplaced[i]
		fmt.Fprintf(&b, "unplaced %s[%s]: %s (%s)", u.Key, RangesText(u.Ranges), u.Reason, u.Message)
		for _, c := range u.Counts {
			fmt.Fprintf(&b, " %s×%d", c.Reason, c.Count)
		}
		if u.Never {
			b.WriteString(" never")
		}
		b.WriteByte('\n')
	}
	for _, w := range p.Waiting {
		fmt.Fprintf(&b, "wait %s[%s]: %s\n", w.Key, RangesText(w.Ranges), w.Reason)
	}
	for i := range p.Reserved {
		k := &p.Reserved[i]
		fmt.Fprintf(&b, "reserve %s for %s[%d]: it has waited %s\n", k.NodeName, k.Key, k.Index, k.waited())
	}
	if p.Wake > 0 {
		fmt.Fprintf(&b, "wake in %s\n", p.Wake)
	}
	if p.More {
		b.WriteString("more\n")
	}
	if b.Len() == 0 {
		return "nothing to do\n"
	}
	return b.String()
}

// Diff lists the differences from another plan, one line each. A line that only the other
// plan has begins with "- ", a line that only p has with "+ ". The result is empty if the
// plans are equal.
func (p *Plan) Diff(old *Plan) string {
	count := map[string]int{}
	for l := range strings.Lines(p.String()) {
		count[l]++
	}
	var b strings.Builder
	for l := range strings.Lines(old.String()) {
		count[l]--
		if count[l] < 0 {
			b.WriteString("- " + l)
		}
	}
	for l := range strings.Lines(p.String()) {
		if count[l] > 0 {
			count[l]--
			b.WriteString("+ " + l)
		}
	}
	return b.String()
}

func portText(ports []state.PortGrant) string {
	var b strings.Builder
	for _, p := range ports {
		b.WriteString(" " + p.Label + ":" + strconv.Itoa(int(p.Port)))
	}
	return b.String()
}

func gpuText(gpus []state.GPUGrant) string {
	var b strings.Builder
	for _, g := range gpus {
		b.WriteString(" " + g.Device + "=" + milli(int64(g.ShareMilli)))
	}
	return b.String()
}

// RangesText formats indices, for example "0-3,7".
func RangesText(ranges []Range) string {
	parts := make([]string, len(ranges))
	for i, r := range ranges {
		parts[i] = strconv.Itoa(int(r.From))
		if r.To > r.From+1 {
			parts[i] += "-" + strconv.Itoa(int(r.To-1))
		}
	}
	return strings.Join(parts, ",")
}

// addIndex adds an index to ascending ranges. The index must be greater than all indices in
// them.
func addIndex(ranges []Range, i int32) []Range {
	if n := len(ranges); n > 0 && ranges[n-1].To == i {
		ranges[n-1].To++
		return ranges
	}
	return append(ranges, Range{i, i + 1})
}

// PendingCounts returns how many instances of a group are unplaced, and how many are
// waiting.
func (p *Plan) PendingCounts(key state.GroupKey) (unplaced, waiting int32) {
	for _, u := range p.Unplaced {
		if u.Key == key {
			unplaced += Instances(u.Ranges)
		}
	}
	for _, w := range p.Waiting {
		if w.Key == key {
			waiting += Instances(w.Ranges)
		}
	}
	return unplaced, waiting
}

// Instances counts the indices in ranges.
func Instances(ranges []Range) int32 {
	n := int32(0)
	for _, r := range ranges {
		n += r.To - r.From
	}
	return n
}

// Commands turns the plan into log commands of at most perCommand (≥ 1) entries each. newID
// makes a UUID for each new allocation, in the plan's order.
func (p *Plan) Commands(newID func() string, perCommand int) []state.ApplyPlan {
	perCommand = max(1, perCommand)
	var out []state.ApplyPlan
	room := 0
	last := func() *state.ApplyPlan {
		if room == 0 {
			out = append(out, state.ApplyPlan{})
			room = perCommand
		}
		return &out[len(out)-1]
	}
	for _, s := range p.Stops {
		c := last()
		c.Stops = append(c.Stops, state.StopAlloc{ID: s.AllocID, Reason: s.Reason, Message: s.Message, GiveUp: s.GiveUp})
		room--
	}
	for _, r := range p.Resizes {
		c := last()
		c.Resizes = append(c.Resizes, state.ResizeAlloc{ID: r.AllocID, JobVersion: r.JobVersion})
		room--
	}
	allocs := make([]state.PlaceAlloc, len(p.Places)) // one array for all commands, because most groups are small
	for from := 0; from < len(p.Places); {
		c, first := last(), &p.Places[from]
		to := from
		for ; to < len(p.Places) && room > 0 && p.Places[to].Key == first.Key && p.Places[to].JobVersion == first.JobVersion; to++ {
			pl := &p.Places[to]
			allocs[to] = state.PlaceAlloc{ID: newID(), Index: pl.Index, NodeID: pl.NodeID, Ports: pl.Ports, GPUs: pl.GPUs, Why: pl.Why, MemoryBytes: pl.Memory}
			room--
		}
		c.Places = append(c.Places, state.PlaceGroup{Key: first.Key, JobVersion: first.JobVersion, Allocs: allocs[from:to:to]})
		from = to
	}
	for _, h := range p.Proven {
		c := last()
		c.Proven = append(c.Proven, state.ProveAlloc{ID: h.AllocID, UpUnixNano: h.UpUnixNano})
		room--
	}
	return out
}
