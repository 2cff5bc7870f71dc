package topo

import (
	"encoding/binary"
	"fmt"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// compactUnit is that of a compact matrix; what is longer than its numbers
// reach is longest, what was not measured is unmeasured.
const (
	compactUnit = 100 * time.Microsecond
	unmeasured  = 0xffff
	longest     = 0xfffe
)

// Compact is a view's measured medians in two bytes each: 2 MB for 1,000
// regions. Unreachable pairs and measurements that are not believed are left
// out, and regions beyond MaxRegions.
func Compact(v *topology.View) *nusav1.CompactMatrix {
	names := v.Names()
	names = names[:min(len(names), MaxRegions)]
	n := len(names)
	out := &nusav1.CompactMatrix{Regions: names, P50: make([]byte, 2*n*n)}
	for i := range n {
		for j := range n {
			value := uint64(unmeasured)
			if e := v.At(i, j); i != j && e.Source == topology.Measured && e.State != topology.Unreachable && e.Doubt == "" {
				value = min(uint64((e.P50+compactUnit/2)/compactUnit), longest)
			}
			binary.LittleEndian.PutUint16(out.P50[2*(i*n+j):], uint16(value))
		}
	}
	return out
}

// Expand calls f for each ordered pair of distinct regions that a compact matrix
// has a median of, and refuses one that is not well formed before the first
// call. Of a median that did not fit, the longest that does is told.
func Expand(m *nusav1.CompactMatrix, f func(from, to string, p50 time.Duration)) error {
	n := len(m.GetRegions())
	if n > MaxRegions || len(m.GetP50()) != 2*n*n {
		return fmt.Errorf("compact matrix: %d bytes for %d regions: want %d, of at most %d regions", len(m.GetP50()), n, 2*n*n, MaxRegions)
	}
	for i, from := range m.GetRegions() {
		for j, to := range m.GetRegions() {
			if value := binary.LittleEndian.Uint16(m.GetP50()[2*(i*n+j):]); i != j && value != unmeasured {
				f(from, to, time.Duration(value)*compactUnit)
			}
		}
	}
	return nil
}
