package job

import (
	"hash/fnv"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// policies holds the fields of a group that only the schedulers read.
var policies = numbersOf("count", "regions", "reschedule", "retry", "parallel", "disconnect", "update", "spread", "affinities")

func numbersOf(names ...protoreflect.Name) map[protowire.Number]bool {
	out := map[protowire.Number]bool{}
	for _, n := range names {
		out[(&nusav1.Group{}).ProtoReflect().Descriptor().Fields().ByName(n).Number()] = true
	}
	return out
}

// GroupHash returns a hash of all fields of a group, except those that only the schedulers
// read. When the hash changes, running instances must be replaced, and the results of
// ended instances no longer count. Defaults must be filled in. Every tier computes the
// same hash.
func GroupHash(g *nusav1.Group) uint64 {
	raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(g) // Marshal fails only for invalid UTF-8, which Validate refuses
	return EncodedGroupHash(raw)
}

// EncodedGroupHash returns what GroupHash returns, for a group that is encoded
// deterministically.
func EncodedGroupHash(raw []byte) uint64 {
	h := fnv.New64a()
	for len(raw) > 0 {
		number, _, n := protowire.ConsumeField(raw)
		if n < 0 {
			break // cannot happen: raw is an encoded message
		}
		if !policies[number] {
			_, _ = h.Write(raw[:n])
		}
		raw = raw[n:]
	}
	return h.Sum64()
}
