package sets

import (
	"cmp"
	"maps"
	"slices"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// MergePeers applies changes to the peers of the region own and returns the result: at
// most maxPeers peers, sorted by name. It does not change its arguments.
func MergePeers(own string, have []*nusav1.PeerRegion, c *nusav1.PeerChanges, maxPeers int) ([]*nusav1.PeerRegion, error) {
	table, err := UnpackPeers(c.GetTable(), maxPeers)
	if err != nil {
		return nil, err
	}
	next := make(map[string]*nusav1.PeerRegion, len(have)+len(table))
	demand := map[string]float64{}
	for _, p := range have {
		demand[p.GetName()] = p.GetProbeDemand()
		if !slices.Contains(c.GetBuckets(), Bucket(p.GetName())) {
			next[p.GetName()] = p
		}
	}
	for _, p := range table {
		next[p.GetName()] = p
	}
	for _, name := range c.GetRemoved() {
		delete(next, name)
	}
	delete(next, own)
	if c.GetDemand() != nil {
		clear(demand)
		for i, name := range c.GetDemand().GetRegions() {
			if i < len(c.GetDemand().GetValues()) {
				demand[name] = c.GetDemand().GetValues()[i]
			}
		}
	}
	out := slices.SortedFunc(maps.Values(next), func(a, b *nusav1.PeerRegion) int { return cmp.Compare(a.GetName(), b.GetName()) })
	for i, p := range out {
		if d := demand[p.GetName()]; d != p.GetProbeDemand() {
			out[i] = withDemand(p, d)
		}
	}
	return out[:min(len(out), maxPeers)], nil
}

// withDemand returns a copy of a region with another probe demand. Its other fields are
// shared.
func withDemand(p *nusav1.PeerRegion, demand float64) *nusav1.PeerRegion {
	return &nusav1.PeerRegion{
		Name: p.GetName(), Location: p.GetLocation(), Labels: p.GetLabels(), ProbeAddresses: p.GetProbeAddresses(),
		Coordinate: p.GetCoordinate(), ProbeDemand: demand, GrpcAddresses: p.GetGrpcAddresses(),
	}
}
