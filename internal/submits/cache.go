package submits

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxEncodedName bounds the bytes that a valid name takes in an encoded spec.
const maxEncodedName = 72

// WithName returns an encoded spec: rest is the spec without its name. The name comes
// first, as in the deterministic encoding.
func WithName(name string, rest []byte) []byte {
	out := make([]byte, 0, len(name)+4+len(rest))
	out = protowire.AppendTag(out, specName, protowire.BytesType)
	return append(protowire.AppendString(out, name), rest...)
}

// CutName splits an encoded spec into its name and the rest. It returns false if the spec
// does not begin with a name.
func CutName(spec []byte) (name string, rest []byte, ok bool) {
	field, kind, tag := protowire.ConsumeTag(spec)
	if tag < 0 || field != specName || kind != protowire.BytesType {
		return "", spec, false
	}
	raw, n := protowire.ConsumeBytes(spec[tag:])
	if n < 0 {
		return "", spec, false
	}
	return string(raw), spec[tag+n:], true
}

// hasName reports whether an encoded spec has a name, or cannot be decoded. In protobuf the
// last name in an encoding counts.
func hasName(spec []byte) bool {
	for len(spec) > 0 {
		field, _, n := protowire.ConsumeField(spec)
		if n < 0 || field == specName {
			return true
		}
		spec = spec[n:]
	}
	return false
}

// Cache stores the results of parsing specs. Its key is the encoded spec without the name,
// because many jobs differ only in their names. Decoding, validating and encoding a spec
// costs more than the rest of a submit.
//
// Only valid specs are stored. The name, if valid, does not change the result, because a
// spec that a longer name could make too large is not stored.
type Cache[V any] struct {
	mu    sync.RWMutex
	specs map[string]*V
	bytes int
}

// These are the bounds of a Cache. When one is reached, the cache is emptied.
const (
	maxCachedSpecs     = 4096
	maxCachedSpecBytes = 8 << 20
)

// Get returns the name in an encoded spec and the result of parsing the spec. It calls
// parse for a spec that is not cached. parse also returns the size of the encoded spec
// without its name. An error comes from parse, or is a gRPC status.
func (c *Cache[V]) Get(raw []byte, parse func(*nusav1.JobSpec) (v V, size int, err error)) (string, *V, error) {
	name, rest, ok := CutName(raw)
	if ok && job.ValidName(name) {
		c.mu.RLock()
		cached := c.specs[string(rest)]
		c.mu.RUnlock()
		if cached != nil {
			return name, cached, nil
		}
	}
	var spec *nusav1.JobSpec
	if raw != nil {
		spec = &nusav1.JobSpec{}
		if err := proto.Unmarshal(raw, spec); err != nil {
			return "", nil, status.Errorf(codes.InvalidArgument, "the spec cannot be decoded: %v", err)
		}
	}
	parsed, size, err := parse(spec)
	if err != nil {
		return "", nil, err
	}
	if ok && !hasName(rest) && size+maxEncodedName <= job.MaxSize {
		c.store(string(rest), &parsed)
	}
	return spec.GetName(), &parsed, nil
}

func (c *Cache[V]) store(rest string, v *V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.specs[rest] != nil {
		return // another call has stored the spec, or the spec's name has another encoding
	}
	size := 2 * len(rest)
	if len(c.specs) >= maxCachedSpecs || c.bytes+size > maxCachedSpecBytes {
		c.specs, c.bytes = nil, 0
	}
	if c.specs == nil {
		c.specs = map[string]*V{}
	}
	c.specs[rest] = v
	c.bytes += size
}
