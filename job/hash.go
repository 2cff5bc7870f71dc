package job

import (
	"hash"
	"hash/fnv"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// policies returns the fields of a group that only the schedulers read.
var policies = sync.OnceValue(func() map[protowire.Number]bool {
	return numbersOf(&nusav1.Group{}, "count", "regions", "reschedule", "retry", "parallel", "disconnect", "update", "spread", "affinities", "services")
})

func numbersOf(m proto.Message, names ...protoreflect.Name) map[protowire.Number]bool {
	out := map[protowire.Number]bool{}
	for _, n := range names {
		out[m.ProtoReflect().Descriptor().Fields().ByName(n).Number()] = true
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
	h, without := fnv.New64a(), policies()
	for len(raw) > 0 {
		number, _, n := protowire.ConsumeField(raw)
		if n < 0 {
			break // cannot happen: raw is an encoded message
		}
		if !without[number] {
			_, _ = h.Write(raw[:n])
		}
		raw = raw[n:]
	}
	return h.Sum64()
}

// RestHash returns a hash like GroupHash that also leaves out the CPU, memory and disk of the group's
// tasks. Two versions with equal rests can have different resources only, and a driver may be able to
// change these while a task runs. The result is never 0.
func RestHash(g *nusav1.Group) uint64 {
	raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(g) // as in GroupHash
	return EncodedRestHash(raw)
}

// EncodedRestHash returns what RestHash returns, for a group that is encoded deterministically.
func EncodedRestHash(raw []byte) uint64 {
	h := fnv.New64a()
	hashRest(h, raw, restLevels())
	return max(1, h.Sum64())
}

// A hashLevel is a message on the way from a group to the resources of its tasks.
type hashLevel struct {
	without map[protowire.Number]bool
	into    protowire.Number // the field with the next level; 0: none
}

var restLevels = sync.OnceValue(func() []hashLevel {
	return []hashLevel{
		{policies(), only(&nusav1.Group{}, "tasks")},
		{nil, 2}, // the value of a map's entry
		{nil, only(&nusav1.Task{}, "resources")},
		{numbersOf(&nusav1.Resources{}, "cpu_milli", "memory_bytes", "disk_bytes"), 0},
	}
})

func only(m proto.Message, name protoreflect.Name) (out protowire.Number) {
	for n := range numbersOf(m, name) {
		out = n
	}
	return out
}

// hashRest writes the fields of an encoded message without those that the levels leave out. The length of
// a nested message depends on these fields, so an end marks it instead.
func hashRest(h hash.Hash, raw []byte, levels []hashLevel) {
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeField(raw)
		if n < 0 {
			break // cannot happen: raw is an encoded message
		}
		switch {
		case levels[0].without[number]:
		case number == levels[0].into && kind == protowire.BytesType:
			_, _, tag := protowire.ConsumeTag(raw)
			inner, _ := protowire.ConsumeBytes(raw[tag:])
			_, _ = h.Write(raw[:tag])
			hashRest(h, inner, levels[1:])
			_, _ = h.Write([]byte{0}) // no tag of a field
		default:
			_, _ = h.Write(raw[:n])
		}
		raw = raw[n:]
	}
}

// Change is what a new version of a job does to a group.
type Change struct {
	Group string
	// InPlace says that only resources change, which drivers may be able to do while tasks run.
	InPlace bool
}

// WorkChanges returns the groups of both versions whose instances the new version changes, sorted by name.
// The defaults of both must be filled in. local has the same meaning as in BindingOf.
func WorkChanges(before, after *nusav1.JobSpec, local bool) (out []Change) {
	for _, name := range sorted(after.GetGroups()) {
		was, is := before.GetGroups()[name], after.GetGroups()[name]
		bound := was != nil && BindingOf(was, local) == BindingOf(is, local)
		if was == nil || bound && GroupHash(was) == GroupHash(is) {
			continue
		}
		out = append(out, Change{name, bound && RestHash(was) == RestHash(is)})
	}
	return out
}
