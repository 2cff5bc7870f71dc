package sets

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/fnv"
	"iter"

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

// HashOrders returns the hash of slot orders, given by key and revision, that were sent at a feature level of
// the global tier. It does not depend on the sequence of the orders. It is never 0. A new field of SlotOrder needs a new
// feature level: otherwise regions that have the order already would not get the field.
func HashOrders(level uint32, orders iter.Seq2[string, int64]) uint64 {
	sum, b := uint64(0), []byte(nil)
	for key, revision := range orders {
		b = binary.BigEndian.AppendUint64(b[:0], uint64(revision))
		b = append(binary.BigEndian.AppendUint32(b, level), key...)
		h := sha256.Sum256(b) // the sum of weaker hashes would be equal for some like orders
		sum += binary.BigEndian.Uint64(h[:])
	}
	return max(1, sum)
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
