package sets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Unmeasured is the value of a pair of regions without a measured median.
const Unmeasured = 0xffff

// noticeable is the change of a median, in the unit of the matrix, above which the change
// counts, if it is also more than a tenth of the median.
const noticeable = 10

// Matrix is the sender's form of the compact matrix. Each region has a number. Each pair
// of regions has the version in which its median last changed noticeably. A pair takes a little more
// than three bytes.
type Matrix struct {
	// Version grows with each update that changes something.
	Version uint64

	names  []string // names of regions by number; empty = the number is free
	named  []uint64 // by number: the version in which the number got its name
	values []uint16
	fresh  []byte // a bit for each pair
	// changed is the version of each pair minus base, or 0 for a version that is not later than base.
	changed []uint8
	base    uint64
}

// keptVersions is the least number of latest versions that changed tells apart.
const keptVersions = 128

// Update sets the regions and the medians between them. median returns the median between
// the regions at positions i and j of names, and whether it is fresh.
func (m *Matrix) Update(names []string, median func(i, j int) (uint16, bool)) {
	version := m.Version + 1
	m.forget(version)
	some := m.number(names, version)
	at := make([]int, len(m.names)) // by number: the position in the argument names
	for k, name := range m.names {
		at[k] = slices.Index(names, name)
	}
	n := len(m.names)
	for i := range n {
		for j := range n {
			value, fresh := uint16(Unmeasured), false
			if i != j && at[i] >= 0 && at[j] >= 0 {
				value, fresh = median(at[i], at[j])
			}
			k := i*n + j
			if !moved(m.values[k], value) {
				value = m.values[k]
			}
			if value != m.values[k] || fresh != bit(m.fresh, k) {
				m.set(k, value, fresh, version)
				some = true
			}
		}
	}
	if some || m.Version == 0 {
		m.Version = version
	}
}

// set sets a pair in a version.
func (m *Matrix) set(k int, value uint16, fresh bool, version uint64) {
	m.values[k], m.changed[k] = value, uint8(version-m.base)
	setBit(m.fresh, k, fresh)
}

// forget makes space in changed for a new version.
func (m *Matrix) forget(version uint64) {
	if version-m.base <= math.MaxUint8 {
		return
	}
	by := version - m.base - keptVersions
	for k, at := range m.changed {
		m.changed[k] = at - uint8(min(uint64(at), by))
	}
	m.base += by
}

// moved reports whether a median has changed noticeably.
func moved(was, is uint16) bool {
	if was == Unmeasured || is == Unmeasured {
		return was != is
	}
	d := int(was) - int(is)
	return d > noticeable && d > int(was)/10 || -d > noticeable && -d > int(was)/10
}

// number gives each new region a number, and frees the numbers of regions that are gone.
func (m *Matrix) number(names []string, version uint64) (some bool) {
	present := make(map[string]bool, len(names))
	for _, name := range names {
		present[name] = true
	}
	for k, name := range m.names {
		if name != "" && !present[name] {
			m.names[k], m.named[k], some = "", version, true
			m.clear(k, version)
		}
		delete(present, name)
	}
	next := m.names
	named := m.named
	for _, name := range names {
		if !present[name] {
			continue
		}
		some = true
		if k := slices.Index(next, ""); k >= 0 {
			next[k], named[k] = name, version
			m.clear(k, version)
			continue
		}
		next, named = append(next, name), append(named, version)
	}
	was, n := m.size(), len(next)
	m.names, m.named = next, named
	if n == was {
		return some
	}
	values, fresh, changed := make([]uint16, n*n), make([]byte, (n*n+7)/8), make([]uint8, n*n)
	for k := range values {
		values[k] = Unmeasured
	}
	for i := range was {
		copy(values[i*n:], m.values[i*was:(i+1)*was])
		copy(changed[i*n:], m.changed[i*was:(i+1)*was])
		for j := range was {
			setBit(fresh, i*n+j, bit(m.fresh, i*was+j))
		}
	}
	m.values, m.fresh, m.changed = values, fresh, changed
	return some
}

// clear removes the medians of the region that has the given number. A receiver does the
// same when the number gets another name.
func (m *Matrix) clear(k int, version uint64) {
	n := m.size()
	for other := range n {
		for _, at := range []int{k*n + other, other*n + k} {
			m.set(at, Unmeasured, false, version)
		}
	}
}

// size returns the number of regions that values has room for.
func (m *Matrix) size() int {
	n := 0
	for n*n < len(m.values) {
		n++
	}
	return n
}

// Whole returns changes that contain the whole matrix.
func (m *Matrix) Whole() *nusav1.MatrixChanges {
	n := len(m.names)
	out := make([]byte, 0, 2*n*n)
	for k, v := range m.values {
		out = binary.AppendVarint(out, int64(v)-predict(m.values, n, k))
	}
	return &nusav1.MatrixChanges{Full: true, Regions: slices.Clone(m.names), Values: Deflate(append(out, m.fresh...))}
}

// predict returns the likely value of a pair from the values left of it and above it, by
// the median predictor of ISO 14495-1. Only the difference from the likely value is sent.
func predict(values []uint16, n, k int) int64 {
	var left, above, corner int64
	if k%n > 0 {
		left = int64(values[k-1])
	}
	if k >= n {
		above = int64(values[k-n])
	}
	if k%n > 0 && k >= n {
		corner = int64(values[k-n-1])
	}
	switch {
	case corner >= max(left, above):
		return min(left, above)
	case corner <= min(left, above):
		return max(left, above)
	}
	return left + above - corner
}

// Since returns the changes after a version. For a version before the latest keptVersions it may return the whole matrix.
func (m *Matrix) Since(version uint64) *nusav1.MatrixChanges {
	out := &nusav1.MatrixChanges{}
	if version == m.Version {
		return out
	}
	if version < m.base {
		return m.Whole()
	}
	for k, name := range m.names {
		if m.named[k] > version {
			out.Regions, out.Numbers = append(out.Regions, name), append(out.Numbers, uint32(k))
		}
	}
	var raw []byte
	n := len(m.names)
	for i := range n {
		var row []byte
		count, last := uint64(0), -1
		for j := range n {
			k := i*n + j
			if m.base+uint64(m.changed[k]) <= version {
				continue
			}
			row = binary.AppendUvarint(row, uint64(j-last))
			row = binary.AppendUvarint(row, uint64(m.values[k]))
			fresh := byte(0)
			if bit(m.fresh, k) {
				fresh = 1
			}
			row = append(row, fresh)
			count, last = count+1, j
		}
		if count > 0 {
			raw = append(binary.AppendUvarint(binary.AppendUvarint(raw, uint64(i)), count), row...)
		}
	}
	if len(raw) > 0 {
		out.Values = Deflate(raw)
	}
	return out
}

var errMatrix = errors.New("malformed changes of the matrix")

// MergeMatrix applies changes to a matrix and returns the result. It does not change its
// arguments. Changes that need more than maxRegions numbers are an error.
func MergeMatrix(have *nusav1.CompactMatrix, c *nusav1.MatrixChanges, maxRegions int) (*nusav1.CompactMatrix, error) {
	raw, err := Inflate(c.GetValues())
	if err != nil && len(c.GetValues()) > 0 {
		return nil, fmt.Errorf("changes of the matrix: %w", err)
	}
	if c.GetFull() {
		return wholeMatrix(c, raw, maxRegions)
	}
	if have == nil {
		return nil, fmt.Errorf("%w: there is no matrix to change", errMatrix)
	}
	names := slices.Clone(have.GetRegions())
	if len(c.GetNumbers()) != len(c.GetRegions()) {
		return nil, errMatrix
	}
	for _, k := range c.GetNumbers() {
		if int(k) >= maxRegions {
			return nil, fmt.Errorf("%w: region number %d, at most %d are taken", errMatrix, k, maxRegions)
		}
		for int(k) >= len(names) {
			names = append(names, "")
		}
	}
	was, n := len(have.GetRegions()), len(names)
	out := &nusav1.CompactMatrix{Regions: names, P50: make([]byte, 2*n*n), Fresh: make([]byte, (n*n+7)/8), Position: c.GetPosition()}
	for k := range n * n {
		i, j := k/n, k%n
		value, fresh := uint16(Unmeasured), false
		if i < was && j < was {
			value, fresh = binary.LittleEndian.Uint16(have.GetP50()[2*(i*was+j):]), bit(have.GetFresh(), i*was+j)
		}
		put(out, k, value, fresh)
	}
	for at, k := range c.GetNumbers() {
		names[k] = c.GetRegions()[at]
		for other := range n {
			put(out, int(k)*n+other, Unmeasured, false)
			put(out, other*n+int(k), Unmeasured, false)
		}
	}
	return out, mergeValues(out, raw)
}

// mergeValues applies the values that the changes of a matrix contain.
func mergeValues(out *nusav1.CompactMatrix, raw []byte) error {
	n := uint64(len(out.GetRegions()))
	broken := false
	next := func() uint64 {
		v, size := binary.Uvarint(raw)
		if size <= 0 {
			broken, raw = true, nil
			return 0
		}
		raw = raw[size:]
		return v
	}
	for len(raw) > 0 && !broken {
		i, count, j := next(), next(), ^uint64(0)
		for range min(count, n) {
			distance, value, fresh := next(), next(), next()
			j += distance
			if broken || i >= n || j >= n || value > Unmeasured {
				return errMatrix
			}
			put(out, int(i*n+j), uint16(value), fresh == 1)
		}
	}
	if broken {
		return errMatrix
	}
	return nil
}

func wholeMatrix(c *nusav1.MatrixChanges, raw []byte, maxRegions int) (*nusav1.CompactMatrix, error) {
	n := len(c.GetRegions())
	if n > maxRegions {
		return nil, fmt.Errorf("%w: %d regions, at most %d are taken", errMatrix, n, maxRegions)
	}
	values := make([]uint16, n*n)
	for k := range values {
		d, size := binary.Varint(raw)
		v := predict(values, n, k) + d
		if size <= 0 || v < 0 || v > Unmeasured {
			return nil, errMatrix
		}
		values[k], raw = uint16(v), raw[size:]
	}
	if len(raw) != (n*n+7)/8 {
		return nil, errMatrix
	}
	out := &nusav1.CompactMatrix{Regions: c.GetRegions(), P50: make([]byte, 2*n*n), Fresh: raw, Position: c.GetPosition()}
	for k, v := range values {
		binary.LittleEndian.PutUint16(out.P50[2*k:], v)
	}
	return out, nil
}

func bit(bits []byte, k int) bool { return k/8 < len(bits) && bits[k/8]>>(k%8)&1 == 1 }

func put(m *nusav1.CompactMatrix, k int, value uint16, fresh bool) {
	binary.LittleEndian.PutUint16(m.P50[2*k:], value)
	setBit(m.Fresh, k, fresh)
}

func setBit(bits []byte, k int, on bool) {
	bits[k/8] &^= 1 << (k % 8)
	if on {
		bits[k/8] |= 1 << (k % 8)
	}
}
