package topo

import (
	"encoding/binary"
	"fmt"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// compactUnit is the unit of the medians in a compact matrix. The value longest stands for
// all longer medians, and unmeasured for pairs without a measured median.
const (
	compactUnit = 100 * time.Microsecond
	unmeasured  = 0xffff
	longest     = 0xfffe
	// maxWhole bounds the regions of a matrix that is sent whole. Only regions of earlier
	// versions get the matrix whole, and these refuse a larger one.
	maxWhole = 1024
)

// Compact returns the measured medians of a view in two bytes each, with a bit that says
// whether a median is fresh or stale: 2.1 MB for 1,000 regions. It leaves out unreachable
// pairs, doubtful measurements, and regions beyond the first 1,024.
func Compact(v *topology.View) *nusav1.CompactMatrix {
	names := v.Names()
	names = names[:min(len(names), maxWhole)]
	n := len(names)
	out := &nusav1.CompactMatrix{Regions: names, P50: make([]byte, 2*n*n), Fresh: make([]byte, (n*n+7)/8)}
	median := Medians(v)
	for i := range n {
		for j := range n {
			value, fresh := uint16(unmeasured), false
			if i != j {
				value, fresh = median(i, j)
			}
			if k := i*n + j; fresh {
				out.Fresh[k/8] |= 1 << (k % 8)
			}
			binary.LittleEndian.PutUint16(out.P50[2*(i*n+j):], value)
		}
	}
	return out
}

// Medians returns a function that returns the median between two distinct regions of a
// view in the form of a compact matrix, and whether the median is fresh.
func Medians(v *topology.View) func(i, j int) (median uint16, fresh bool) {
	return func(i, j int) (uint16, bool) {
		e := v.EdgeAt(i, j)
		if e.Source != topology.Measured || e.State == topology.Unreachable || e.Doubt != "" {
			return unmeasured, false
		}
		return uint16(min(uint64((e.P50+compactUnit/2)/compactUnit), longest)), e.State == topology.OK
	}
}

// Expand calls f for each ordered pair of distinct regions that has a median in a compact
// matrix. For a malformed matrix it returns an error without calling f. A median that was
// too long for the format has the longest value. A matrix of an earlier version has no
// bits for freshness, so all its medians are stale.
func Expand(m *nusav1.CompactMatrix, f func(from, to string, p50 time.Duration, state topology.State)) error {
	n := len(m.GetRegions())
	if n > MaxRegions || len(m.GetP50()) != 2*n*n {
		return fmt.Errorf("compact matrix: %d bytes for %d regions: want %d, of at most %d regions", len(m.GetP50()), n, 2*n*n, MaxRegions)
	}
	fresh := m.GetFresh()
	if want := (n*n + 7) / 8; len(fresh) != 0 && len(fresh) != want {
		return fmt.Errorf("compact matrix: %d bytes of freshness for %d regions: want %d, or none", len(fresh), n, want)
	}
	for i, from := range m.GetRegions() {
		for j, to := range m.GetRegions() {
			k, state := i*n+j, topology.Stale
			if len(fresh) > 0 && fresh[k/8]>>(k%8)&1 == 1 {
				state = topology.OK
			}
			if value := binary.LittleEndian.Uint16(m.GetP50()[2*k:]); i != j && value != unmeasured {
				f(from, to, time.Duration(value)*compactUnit, state)
			}
		}
	}
	return nil
}
