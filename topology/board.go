package topology

import (
	"slices"
	"time"
)

// ChangeLog is a matrix as it is told to those who watch it: an edge is posted anew
// only when it has changed noticeably, and whoever asks what was posted since
// sees the numbers that all others see. It holds 112 bytes a pair of regions.
// It is not safe for concurrent use.
type ChangeLog struct {
	view     *View
	names    []string
	entries  []loggedEdge // from*n+to
	sequence uint64
}

// loggedEdge is an edge as it was told.
type loggedEdge struct {
	cell
	source   Source
	doubted  bool
	relErr   float32
	sequence uint64 // 0 = never
}

// NewChangeLog begins with a view.
func NewChangeLog(v *View) *ChangeLog {
	b := &ChangeLog{names: v.Names(), entries: make([]loggedEdge, len(v.regions)*len(v.regions))}
	b.Update(v)
	return b
}

// Update takes what has changed noticeably. It is false, and nothing is taken, if
// the view has other regions than the board: a new one is needed then.
func (b *ChangeLog) Update(v *View) bool {
	if v == b.view || b.view != nil && v.now < b.view.now {
		return true // told already, or something newer
	}
	if b.view == nil || !sameRegions(v, b.view) {
		if !slices.EqualFunc(b.names, v.regions, func(name string, r Region) bool { return name == r.Name }) {
			return false
		}
	}
	b.view = v
	next, n := b.sequence+1, len(b.names)
	for i := range n {
		for j := range n {
			if i == j {
				continue
			}
			p := &b.entries[i*n+j]
			is := v.loggedEdge(i, j)
			if p.sequence > 0 && !p.differs(&is) {
				continue
			}
			is.sequence = next
			*p = is
			b.sequence = next
		}
	}
	return true
}

func sameRegions(v, w *View) bool {
	return len(v.regions) == len(w.regions) && (len(v.regions) == 0 || &v.regions[0] == &w.regions[0])
}

// loggedEdge is what there is to tell of an edge.
func (v *View) loggedEdge(i, j int) loggedEdge {
	if c := v.cell(i, j); c != nil {
		p := loggedEdge{cell: *c, source: Measured}
		p.state = v.stateOf(c)
		if len(v.doubts) > 0 {
			p.doubted = v.doubts[i*len(v.regions)+j] != ""
		}
		return p
	}
	e := v.guessed(i, j)
	return loggedEdge{cell: cell{p50: e.P50, p90: e.P90, p99: e.P99}, source: e.Source, relErr: float32(e.Error)}
}

// differs noticeably: by state, source or doubt, whether the other end is heard,
// or by the median's tenth and a millisecond.
func (p *loggedEdge) differs(is *loggedEdge) bool {
	return p.state != is.state || p.source != is.source || p.doubted != is.doubted || p.reverseReachable != is.reverseReachable ||
		(p.p50-is.p50).Abs() >= max(p.p50/10, time.Millisecond)
}

// Names lists the regions.
func (b *ChangeLog) Names() []string { return b.names }

// Sequence numbers the latest post that changed something, from 1.
func (b *ChangeLog) Sequence() uint64 { return b.sequence }

// ChangedEdges lists the edges of region number i in the order of Names that were posted
// after a sequence. Numbers are those posted; ages are of the latest answer.
func (b *ChangeLog) ChangedEdges(i int, after uint64) []Edge {
	var out []Edge
	n := len(b.names)
	for j := range n {
		p := &b.entries[i*n+j]
		if i == j || p.sequence <= after {
			continue
		}
		e := Edge{P50: p.p50, P90: p.p90, P99: p.p99, Error: float64(p.relErr)}
		if p.source == Measured {
			e = p.edge(b.view.now)
			if c := b.view.cell(i, j); c != nil {
				e.Age = b.view.now - c.seen
			}
			if p.doubted {
				e.Doubt = b.view.doubts[i*n+j]
			}
		}
		e.From, e.To, e.State, e.Source = b.names[i], b.names[j], p.state, p.source
		out = append(out, e)
	}
	return out
}
