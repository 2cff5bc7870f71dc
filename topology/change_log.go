package topology

import (
	"slices"
	"time"
)

// ChangeLog is the matrix as its watchers see it. An edge gets a new entry only when it
// has changed noticeably. Every watcher that requests the entries after a sequence gets
// the same numbers. A ChangeLog takes 40 bytes for each pair of regions. It is not safe
// for concurrent use.
type ChangeLog struct {
	view     *View
	names    []string
	entries  []loggedEdge // from*n+to
	sequence uint64
}

// loggedEdge is the latest entry of an edge.
type loggedEdge struct {
	cell
	source   Source
	doubted  bool
	relErr   float32
	sequence uint64 // 0 = never
}

// NewChangeLog returns a log that starts with the edges of a view.
func NewChangeLog(v *View) *ChangeLog {
	b := &ChangeLog{names: v.Names(), entries: make([]loggedEdge, len(v.regions)*len(v.regions))}
	b.Update(v)
	return b
}

// Update logs the edges that have changed noticeably. If the view has other regions than
// the log, Update changes nothing and returns false. The caller then needs a new log.
func (b *ChangeLog) Update(v *View) bool {
	if v == b.view || b.view != nil && v.now < b.view.now {
		return true // the view was logged already, or is older than the logged one
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

// loggedEdge returns an edge in the form in which it is logged.
func (v *View) loggedEdge(i, j int) loggedEdge {
	if c := v.cell(i, j); c.state != Unknown {
		p := loggedEdge{cell: c, source: Measured}
		p.state = v.stateOf(i, j)
		if len(v.doubts) > 0 {
			p.doubted = v.doubts[i*len(v.regions)+j] != ""
		}
		return p
	}
	e := v.guessed(i, j)
	return loggedEdge{cell: cell{trips: trips{p50: SpanOf(e.P50), p90: SpanOf(e.P90), p99: SpanOf(e.P99)}}, source: e.Source, relErr: float32(e.Error)}
}

// differs reports whether an edge has changed noticeably. These changes are noticeable:
// another state or source, a doubt that begins or ends, and a reverse direction that
// begins or ceases to work. A change of the median is noticeable if it is at least a
// tenth and at least a millisecond.
func (p *loggedEdge) differs(is *loggedEdge) bool {
	return p.state != is.state || p.source != is.source || p.doubted != is.doubted || p.reverseReachable() != is.reverseReachable() ||
		(p.p50.Duration()-is.p50.Duration()).Abs() >= max(p.p50.Duration()/10, time.Millisecond)
}

// Names returns the names of the regions, in the order of their numbers.
func (b *ChangeLog) Names() []string { return b.names }

// Sequence returns the number of the latest update that changed an entry, from 1.
func (b *ChangeLog) Sequence() uint64 { return b.sequence }

// ChangedEdges returns the edges from region number i that were logged after a sequence,
// in the order of Names. The round trips are those that were logged. Ages count from the
// latest response.
func (b *ChangeLog) ChangedEdges(i int, after uint64) []Edge {
	var out []Edge
	n := len(b.names)
	for j := range n {
		p := &b.entries[i*n+j]
		if i == j || p.sequence <= after {
			continue
		}
		e := Edge{P50: p.p50.Duration(), P90: p.p90.Duration(), P99: p.p99.Duration(), Error: float64(p.relErr)}
		if p.source == Measured {
			e = p.edge(0)
			if b.view.cell(i, j).state != Unknown {
				e.Age = b.view.ageOf(i, j)
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
