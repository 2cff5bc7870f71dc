package job

import (
	"hash/fnv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// policies are the fields that only the schedulers read.
var policies = map[protoreflect.Name]bool{
	"count": true, "regions": true, "reschedule": true, "disconnect": true,
	"update": true, "spread": true, "affinities": true,
}

// GroupHash covers what a running instance cannot take over from a changed
// group, and what makes the work of one that has ended other work: not the
// count, nor the policies that only the schedulers read. Defaults must be
// filled in. Equal at every tier.
func GroupHash(g *nusav1.Group) uint64 {
	// A shallow copy: only what is left out differs.
	kept := &nusav1.Group{}
	g.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !policies[field.Name()] {
			kept.ProtoReflect().Set(field, v)
		}
		return true
	})
	h := fnv.New64a()
	raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(kept) // only invalid UTF-8 fails, which Validate refuses
	_, _ = h.Write(raw)
	return h.Sum64()
}
