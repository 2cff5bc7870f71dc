package sets

import (
	"hash/fnv"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// HashOrigins returns the hash of origin records; never 0.
func HashOrigins(t *nusav1.OriginTable) uint64 { return hash(t) }

// HashAsks returns the hash of asks in their order; never 0.
func HashAsks(asks []*nusav1.ShapeSubscription) uint64 {
	return hash(&nusav1.ShapeSubscriptions{Asks: asks})
}

func hash(m proto.Message) uint64 {
	raw, err := deterministic.Marshal(m)
	if err != nil {
		return 1 // equal to no other end's hash
	}
	h := fnv.New64a()
	h.Write(raw)
	return max(1, h.Sum64())
}
