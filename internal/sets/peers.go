package sets

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Buckets is the number of buckets into which peers are divided. Each bucket has a hash,
// so that only buckets whose hashes differ are sent.
const Buckets = 32

// A table holds coordinates as integers: times in units of 1/perSecond seconds, and errors
// in units of 1/perError.
const (
	perSecond = 1 << 13
	perError  = 1 << 8
)

// Bucket returns the number of the bucket that has a region.
func Bucket(name string) uint32 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return uint32(h.Sum64() % Buckets)
}

// HashPeer returns the hash of a region, encoded as in a table.
func HashPeer(p *nusav1.PeerRegion) uint64 {
	raw, err := deterministic.Marshal(peerTable([]*nusav1.PeerRegion{p}))
	if err != nil {
		return 0 // such a region cannot be sent
	}
	h := fnv.New64a()
	h.Write(raw)
	return h.Sum64()
}

// HashPeers returns the hash of each bucket; nil for no peers.
func HashPeers(peers []*nusav1.PeerRegion) []uint64 {
	if len(peers) == 0 {
		return nil
	}
	out := make([]uint64, Buckets)
	for _, p := range peers {
		out[Bucket(p.GetName())] ^= HashPeer(p)
	}
	return out
}

// PackPeers encodes and compresses regions as a table. The regions must be sorted by name.
func PackPeers(peers []*nusav1.PeerRegion) []byte { return pack(peerTable(peers)) }

func peerTable(peers []*nusav1.PeerRegion) *nusav1.PeerTable {
	t := &nusav1.PeerTable{}
	index := map[string]uint32{}
	var last [4]byte
	for _, p := range peers {
		t.Names = append(t.Names, strings.ToValidUTF8(p.GetName(), ""))
		lat, long := math.NaN(), math.NaN()
		if l := p.GetLocation(); l != nil {
			lat, long = l.GetLatitude(), l.GetLongitude()
		}
		t.Latitudes, t.Longitudes = append(t.Latitudes, lat), append(t.Longitudes, long)
		t.Places = append(t.Places, p.GetLocation().GetName())
		t.Labels = append(t.Labels, labelSet(t, index, p.GetLabels()))
		addAddresses(t, p, &last)
		addCoordinate(t, p.GetCoordinate())
	}
	if len(t.GetLabelSets()) == 0 {
		t.Labels = nil
	}
	if !slices.Contains(t.GetLocated(), false) {
		t.Located = nil
	}
	return t
}

// labelSet returns the number of a set of labels in a table. A new set is added to the
// table.
func labelSet(t *nusav1.PeerTable, index map[string]uint32, labels map[string]string) uint32 {
	if len(labels) == 0 {
		return 0
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&b, "%q=%q,", k, labels[k])
	}
	n, known := index[b.String()]
	if !known {
		t.LabelSets = append(t.LabelSets, &nusav1.LabelSet{Labels: labels})
		n = uint32(len(t.LabelSets))
		index[b.String()] = n
	}
	return n
}

// addAddresses adds the addresses of a region to a table. A probe address and a gRPC
// address at the same position of their lists are one entry if their hosts are equal. last
// is the IPv4 address that was added before, because only the difference from it is
// written. Malformed addresses, which no process can dial, are left out.
func addAddresses(t *nusav1.PeerTable, p *nusav1.PeerRegion, last *[4]byte) {
	count := uint32(0)
	add := func(host string, probe, grpc uint32) {
		if host == "" {
			return
		}
		if ip, err := netip.ParseAddr(host); err == nil && ip.Is4() {
			four := ip.As4()
			for i, b := range four {
				t.Ipv4 = append(t.Ipv4, b-last[i])
			}
			host, *last = "", four
		}
		t.Hosts, t.ProbePorts, t.GrpcPorts = append(t.Hosts, host), append(t.ProbePorts, probe), append(t.GrpcPorts, grpc)
		count++
	}
	probes, grpcs := p.GetProbeAddresses(), p.GetGrpcAddresses()
	for i := range max(len(probes), len(grpcs)) {
		var host, other string
		var probe, grpc uint32
		if i < len(probes) {
			host, probe = splitAddress(probes[i])
		}
		if i < len(grpcs) {
			other, grpc = splitAddress(grpcs[i])
		}
		if host == other {
			add(host, probe, grpc)
			continue
		}
		add(host, probe, 0)
		add(other, 0, grpc)
	}
	t.Counts = append(t.Counts, count)
}

// splitAddress returns the parts of "host:port". The host is empty if the address is
// malformed.
func splitAddress(address string) (host string, port uint32) {
	host, text, err := net.SplitHostPort(address)
	n, numErr := strconv.ParseUint(text, 10, 16)
	if err != nil || numErr != nil || n == 0 {
		return "", 0
	}
	return host, uint32(n)
}

func addCoordinate(t *nusav1.PeerTable, c *nusav1.Coordinate) {
	fits := len(c.GetVector()) > 0 && (t.GetDimensions() == 0 || int(t.GetDimensions()) == len(c.GetVector())) && inRange(c)
	t.Located = append(t.Located, fits)
	if !fits {
		return
	}
	t.Dimensions = uint32(len(c.GetVector()))
	for _, v := range c.GetVector() {
		t.Vectors = append(t.Vectors, round(v, perSecond))
	}
	t.Heights = append(t.Heights, round(c.GetHeight(), perSecond))
	t.Adjustments = append(t.Adjustments, round(c.GetAdjustment(), perSecond))
	t.Errors = append(t.Errors, round(c.GetError(), perError))
}

// inRange reports whether a table can hold all values of a coordinate.
func inRange(c *nusav1.Coordinate) bool {
	const most = 1000
	for _, v := range append(slices.Clone(c.GetVector()), c.GetHeight(), c.GetAdjustment(), c.GetError()) {
		if !(v >= -most && v <= most) { // also NaN
			return false
		}
	}
	return true
}

// Moved reports whether two coordinates differ so much that predicted round trips may
// differ by more than seconds, or that their errors differ by more than share.
func Moved(a, b *nusav1.Coordinate, seconds, share float64) bool {
	if a == nil || b == nil || len(a.GetVector()) != len(b.GetVector()) {
		return a != b
	}
	square := 0.0
	for i, v := range a.GetVector() {
		square += (v - b.GetVector()[i]) * (v - b.GetVector()[i])
	}
	far := math.Sqrt(square) + math.Abs(a.GetHeight()-b.GetHeight()) + math.Abs(a.GetAdjustment()-b.GetAdjustment())
	return far > seconds || math.Abs(a.GetError()-b.GetError()) > share
}

func round(v float64, unit float64) int32 { return int32(math.Round(v * unit)) }

// UnpackPeers decodes a table of regions. The regions have no probe demand. A table with
// more than maxPeers regions is an error.
func UnpackPeers(data []byte, maxPeers int) ([]*nusav1.PeerRegion, error) {
	if len(data) == 0 {
		return nil, nil
	}
	t := &nusav1.PeerTable{}
	if err := unpack(data, t); err != nil {
		return nil, fmt.Errorf("table of regions: %w", err)
	}
	n := len(t.GetNames())
	addresses := len(t.GetHosts())
	located := n
	if len(t.GetLocated()) > 0 {
		located = 0
		for _, l := range t.GetLocated() {
			if l {
				located++
			}
		}
	}
	empty := 0
	for _, h := range t.GetHosts() {
		if h == "" {
			empty++
		}
	}
	sum := 0
	for _, c := range t.GetCounts() {
		sum += int(c)
	}
	switch {
	case n > maxPeers:
		return nil, fmt.Errorf("table of %d regions, at most %d are taken", n, maxPeers)
	case len(t.GetLatitudes()) != n, len(t.GetLongitudes()) != n, len(t.GetPlaces()) != n, len(t.GetCounts()) != n,
		len(t.GetLabels()) != n && len(t.GetLabels()) != 0, len(t.GetLocated()) != n && len(t.GetLocated()) != 0,
		sum != addresses, len(t.GetIpv4()) != 4*empty, len(t.GetProbePorts()) != addresses, len(t.GetGrpcPorts()) != addresses,
		len(t.GetVectors()) != located*int(t.GetDimensions()), len(t.GetHeights()) != located,
		len(t.GetAdjustments()) != located, len(t.GetErrors()) != located:
		return nil, fmt.Errorf("table of regions: %w", errLengths)
	}
	return readPeers(t), nil
}

// readPeers returns the regions of a table. The lengths of its lists must be correct.
func readPeers(t *nusav1.PeerTable) []*nusav1.PeerRegion {
	out := make([]*nusav1.PeerRegion, 0, len(t.GetNames()))
	address, four, at, dimensions := 0, 0, 0, int(t.GetDimensions())
	var last [4]byte
	for i, name := range t.GetNames() {
		p := &nusav1.PeerRegion{Name: name}
		if lat := t.GetLatitudes()[i]; !math.IsNaN(lat) {
			p.Location = &nusav1.Location{Latitude: lat, Longitude: t.GetLongitudes()[i], Name: t.GetPlaces()[i]}
		}
		if len(t.GetLabels()) > 0 {
			if set := int(t.GetLabels()[i]); set > 0 && set <= len(t.GetLabelSets()) {
				p.Labels = t.GetLabelSets()[set-1].GetLabels()
			}
		}
		for range t.GetCounts()[i] {
			host := t.GetHosts()[address]
			if host == "" {
				for i := range last {
					last[i] += t.GetIpv4()[four+i]
				}
				host, four = netip.AddrFrom4(last).String(), four+4
			}
			if port := t.GetProbePorts()[address]; port > 0 {
				p.ProbeAddresses = append(p.ProbeAddresses, net.JoinHostPort(host, strconv.Itoa(int(port))))
			}
			if port := t.GetGrpcPorts()[address]; port > 0 {
				p.GrpcAddresses = append(p.GrpcAddresses, net.JoinHostPort(host, strconv.Itoa(int(port))))
			}
			address++
		}
		if len(t.GetLocated()) == 0 && dimensions > 0 || len(t.GetLocated()) > 0 && t.GetLocated()[i] {
			c := &nusav1.Coordinate{
				Height: float64(t.GetHeights()[at]) / perSecond, Adjustment: float64(t.GetAdjustments()[at]) / perSecond,
				Error: float64(t.GetErrors()[at]) / perError,
			}
			for _, v := range t.GetVectors()[at*dimensions : (at+1)*dimensions] {
				c.Vector = append(c.Vector, float64(v)/perSecond)
			}
			p.Coordinate = c
			at++
		}
		out = append(out, p)
	}
	return out
}
