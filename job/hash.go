package job

import (
	"hash/fnv"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// policies are the fields that only the schedulers read.
var policies = numbersOf("count", "regions", "reschedule", "disconnect", "update", "spread", "affinities")

func numbersOf(names ...protoreflect.Name) map[protowire.Number]bool {
	out := map[protowire.Number]bool{}
	for _, n := range names {
		out[(&nusav1.Group{}).ProtoReflect().Descriptor().Fields().ByName(n).Number()] = true
	}
	return out
}

// GroupHash covers what a running instance cannot take over from a changed
// group, and what makes the work of one that has ended other work: not the
// count, nor the policies that only the schedulers read. Defaults must be
// filled in. Equal at every tier.
func GroupHash(g *nusav1.Group) uint64 {
	raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(g) // only invalid UTF-8 fails, which Validate refuses
	return EncodedGroupHash(raw)
}

// EncodedGroupHash is GroupHash of a group that was encoded deterministically.
func EncodedGroupHash(raw []byte) uint64 {
	h := fnv.New64a()
	for len(raw) > 0 {
		number, _, n := protowire.ConsumeField(raw)
		if n < 0 {
			break // never of an encoded group
		}
		if !policies[number] {
			_, _ = h.Write(raw[:n])
		}
		raw = raw[n:]
	}
	return h.Sum64()
}
