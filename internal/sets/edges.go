package sets

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// step is the ratio of two neighbouring round trips of scale.
	step = 1.001
	// lossUnit and ageUnit are the units of losses and ages in a table.
	lossUnit = 1e-6
	ageUnit  = time.Second
	// A byte of EdgeTable.states holds the state in its lowest three bits, then reverseBit
	// if the reverse direction works, and the number of the method from bit methodShift
	// on.
	reverseBit  = 8
	methodShift = 4
)

var logStep = math.Log(step)

// scale lists the round trips that a table can hold, from 0 to almost two minutes. A table
// holds the index of a round trip in scale, which is called its number.
var scale = func() []time.Duration {
	out := make([]time.Duration, 1, 18_614) // room for all
	for at := float64(time.Microsecond); at < float64(2*time.Minute); at *= step {
		out = append(out, time.Duration(math.Round(at)))
	}
	return out
}()

// methods lists the methods of probing by number.
var methods = []string{"", "udp", "tcp", "connect"}

// Number returns the number of the round trip of scale that is nearest to d.
func Number(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	n := 1 + math.Round(math.Log(float64(d)/float64(time.Microsecond))/logStep)
	return uint32(min(max(n, 1), float64(len(scale)-1)))
}

// Duration returns the round trip that has the given number. For a number beyond scale it
// returns the longest round trip.
func Duration(n int64) time.Duration { return scale[min(max(n, 0), int64(len(scale)-1))] }

// PackRow encodes and compresses edges from one region. PackColumn does so for edges to
// one region.
func PackRow(edges []topology.Edge) []byte {
	return packEdges(edges, func(e *topology.Edge) string { return e.To })
}

// PackColumn is described at PackRow.
func PackColumn(edges []topology.Edge) []byte {
	return packEdges(edges, func(e *topology.Edge) string { return e.From })
}

func packEdges(edges []topology.Edge, end func(*topology.Edge) string) []byte {
	t := tables.Get().(*table)
	defer t.put()
	t.set(edges, end)
	return pack(t.edges)
}

// set sets the table to edges.
func (t *table) set(edges []topology.Edge, end func(*topology.Edge) string) {
	to := t.edges
	setLength(len(edges), &to.Regions)
	setLength(len(edges), &to.States)
	setLength(len(edges), &to.P50, &to.Samples, &to.SetAside, &to.Loss, &to.LossOut, &to.LossBack, &to.Ages)
	setLength(len(edges), &to.P90, &to.P99, &to.Min, &to.Jitter)
	for i := range edges {
		e := &edges[i]
		p50, p90, p99 := Number(e.P50), Number(e.P90), Number(e.P99)
		state := byte(e.State) | byte(max(0, slices.Index(methods, e.Method)))<<methodShift
		if e.ReverseReachable {
			state |= reverseBit
		}
		to.Regions[i], to.States[i] = end(e), state
		to.P50[i], to.P90[i], to.P99[i], to.Min[i] = p50, int32(p90)-int32(p50), int32(p99)-int32(p90), int32(p50)-int32(Number(e.Min))
		to.Jitter[i], to.Samples[i], to.SetAside[i] = int32(p50)-int32(Number(e.Jitter)), uint32(max(0, e.Samples)), uint32(max(0, e.SetAside))
		to.Loss[i], to.LossOut[i], to.LossBack[i] = lossNumber(e.Loss), lossNumber(e.LossOut), lossNumber(e.LossBack)
		to.Ages[i] = uint32(min(max(0, (e.Age+ageUnit/2)/ageUnit), math.MaxUint32))
	}
	for _, list := range []*[]uint32{&to.Loss, &to.LossOut, &to.LossBack} {
		if !slices.ContainsFunc(*list, func(l uint32) bool { return l != 0 }) {
			*list = (*list)[:0]
		}
	}
}

func lossNumber(share float64) uint32 {
	if !(share > 0) {
		return 0
	}
	return uint32(min(share, 1)/lossUnit + 0.5)
}

// UnpackRow decodes a table of measured edges from a region, UnpackColumn a table of edges
// to a region. A table with more than maxEdges edges is an error.
func UnpackRow(from string, data []byte, maxEdges int) ([]topology.Edge, error) {
	return AppendRow(nil, from, data, maxEdges)
}

// AppendRow appends what UnpackRow returns to out.
func AppendRow(out []topology.Edge, from string, data []byte, maxEdges int) ([]topology.Edge, error) {
	return appendEdges(out, data, maxEdges, func(e *topology.Edge, other string) { e.From, e.To = from, other })
}

// UnpackColumn is described at UnpackRow.
func UnpackColumn(to string, data []byte, maxEdges int) ([]topology.Edge, error) {
	return appendEdges(nil, data, maxEdges, func(e *topology.Edge, other string) { e.From, e.To = other, to })
}

func appendEdges(out []topology.Edge, data []byte, maxEdges int, ends func(e *topology.Edge, other string)) ([]topology.Edge, error) {
	if len(data) == 0 {
		return out, nil
	}
	used := tables.Get().(*table)
	defer used.put()
	if err := unpackTo(data, used.decode); err != nil {
		return nil, fmt.Errorf("table of edges: %w", err)
	}
	t := used.edges
	n := len(t.GetRegions())
	if n > maxEdges {
		return nil, fmt.Errorf("table of %d edges, at most %d are taken", n, maxEdges)
	}
	lossLength := func(l []uint32) bool { return len(l) == 0 || len(l) == n }
	if len(t.GetStates()) != n || len(t.GetP50()) != n || len(t.GetP90()) != n || len(t.GetP99()) != n || len(t.GetMin()) != n ||
		len(t.GetJitter()) != n || len(t.GetSamples()) != n || len(t.GetSetAside()) != n || len(t.GetAges()) != n ||
		!lossLength(t.GetLoss()) || !lossLength(t.GetLossOut()) || !lossLength(t.GetLossBack()) {
		return nil, fmt.Errorf("table of edges: %w", errLengths)
	}
	share := func(l []uint32, i int) float64 {
		if len(l) == 0 {
			return 0
		}
		return min(1, float64(l[i])/(1/lossUnit))
	}
	out = slices.Grow(out, n)
	for i, other := range t.GetRegions() {
		state := t.GetStates()[i]
		p50 := int64(t.GetP50()[i])
		p90 := p50 + int64(t.GetP90()[i])
		out = append(out, topology.Edge{
			State: topology.State(state & (reverseBit - 1)), ReverseReachable: state&reverseBit != 0, Source: topology.Measured,
			P50: Duration(p50), P90: Duration(p90), P99: Duration(p90 + int64(t.GetP99()[i])), Min: Duration(p50 - int64(t.GetMin()[i])),
			Jitter: Duration(p50 - int64(t.GetJitter()[i])), Samples: int(t.GetSamples()[i]), SetAside: int(t.GetSetAside()[i]),
			Loss: share(t.GetLoss(), i), LossOut: share(t.GetLossOut(), i), LossBack: share(t.GetLossBack(), i),
			Age: time.Duration(t.GetAges()[i]) * ageUnit,
		})
		e := &out[len(out)-1]
		if m := int(state >> methodShift); m < len(methods) {
			e.Method = methods[m]
		}
		if e.State > topology.Unreachable {
			return nil, fmt.Errorf("table of edges: state %d of the edge with %.64q is not known", e.State, other)
		}
		ends(e, other)
	}
	return out, nil
}
