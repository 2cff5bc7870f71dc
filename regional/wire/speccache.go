package wire

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// CachedSpec is the result of parsing a spec, without the name of the job. Several jobs
// share it, so it must not be changed.
type CachedSpec struct {
	Job      state.Job // its Spec is the encoding without the name
	Warnings []string
}

// Named returns the job with the given name. The name comes first in its encoded spec, as
// in the deterministic encoding.
func (c *CachedSpec) Named(name string) state.Job {
	j := c.Job
	j.Key.Job = name
	j.Spec = make([]byte, 0, len(name)+4+len(c.Job.Spec))
	j.Spec = protowire.AppendTag(j.Spec, specName, protowire.BytesType)
	j.Spec = append(protowire.AppendString(j.Spec, name), c.Job.Spec...)
	return j
}

// maxEncodedName bounds the bytes that a valid name takes in an encoded spec.
const maxEncodedName = 72

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

// SpecCache stores the results of parsing specs. Its key is the encoded spec without the
// name, because many jobs differ only in their names. Decoding, validating and encoding a
// spec costs more than the rest of a submit.
//
// Only valid specs are stored. A valid name does not change the result: specs that a longer
// name could make too large are not stored.
type SpecCache struct {
	mu    sync.RWMutex
	specs map[string]*CachedSpec
	bytes int
}

// These are the bounds of a SpecCache. When one is reached, the cache is emptied.
const (
	maxCachedSpecs     = 1024
	maxCachedSpecBytes = 8 << 20
)

// Get returns the name in an encoded spec and the result of parsing the spec. It calls
// parse for a spec that is not cached. The error is a gRPC status.
func (c *SpecCache) Get(raw []byte, parse func(*nusav1.JobSpec) (CachedSpec, error)) (string, *CachedSpec, error) {
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
	parsed, err := parse(spec)
	if err != nil {
		return "", nil, err
	}
	if ok && !hasName(rest) && len(parsed.Job.Spec)+maxEncodedName <= job.MaxSize {
		c.store(string(rest), &parsed)
	}
	return spec.GetName(), &parsed, nil
}

func (c *SpecCache) store(rest string, spec *CachedSpec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.specs[rest] != nil {
		return // another call stored it, or its name has another encoding
	}
	size := 2 * len(rest)
	if len(c.specs) >= maxCachedSpecs || c.bytes+size > maxCachedSpecBytes {
		c.specs, c.bytes = nil, 0
	}
	if c.specs == nil {
		c.specs = map[string]*CachedSpec{}
	}
	c.specs[rest] = spec
	c.bytes += size
}
