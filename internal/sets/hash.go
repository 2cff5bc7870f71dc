package sets

import (
	"hash/fnv"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// HashAuth returns the hash of who may do what. It is never 0.
func HashAuth(a *nusav1.AuthSet) uint64 { return hash(a) }

// HashOrigins returns the hash of origin records. It is never 0.
func HashOrigins(t *nusav1.OriginTable) uint64 { return hash(t) }

// HashAsks returns the hash of asks, which depends on their order. It is never 0.
func HashAsks(asks []*nusav1.ShapeSubscription) uint64 {
	return hash(&nusav1.ShapeSubscriptions{Asks: asks})
}

func hash(m proto.Message) uint64 {
	raw, err := deterministic.Marshal(m)
	if err != nil {
		return 1 // 1 differs from the hash at the other end, so that the content is sent
	}
	h := fnv.New64a()
	h.Write(raw)
	return max(1, h.Sum64())
}
