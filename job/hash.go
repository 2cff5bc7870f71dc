package job

import (
	"hash/fnv"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// GroupHash covers what a running instance cannot take over from a changed
// group, and what makes the work of one that has ended other work: not the
// count, nor the policies that only the schedulers read. Defaults must be
// filled in. Equal at every tier.
func GroupHash(g *nusav1.Group) uint64 {
	g = proto.CloneOf(g)
	g.Count, g.Regions, g.Reschedule, g.Disconnect = nil, nil, nil, nil
	g.Update, g.Spread, g.Affinities = nil, nil, nil
	h := fnv.New64a()
	raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(g) // only invalid UTF-8 fails, which Validate refuses
	_, _ = h.Write(raw)
	return h.Sum64()
}
