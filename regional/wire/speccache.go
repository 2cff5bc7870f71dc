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

// CachedSpec is the result of parsing a spec, without the name of its job. It is
// shared and must not be changed.
type CachedSpec struct {
	Job      state.Job // Spec is the encoding without the name
	Warnings []string
}

// Named returns the job with that name. The encoding of its spec is the
// deterministic one, in which the name comes first.
func (c *CachedSpec) Named(name string) state.Job {
	j := c.Job
	j.Key.Job = name
	j.Spec = make([]byte, 0, len(name)+4+len(c.Job.Spec))
	j.Spec = protowire.AppendTag(j.Spec, specName, protowire.BytesType)
	j.Spec = append(protowire.AppendString(j.Spec, name), c.Job.Spec...)
	return j
}

// maxEncodedName bounds the encoding of a valid name in a spec.
const maxEncodedName = 72

// CutName splits an encoded spec that begins with the name.
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

// hasName says whether an encoded spec has a name, or cannot be decoded: in
// protobuf the last name counts.
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

// SpecCache stores the results of parsing specs by their bytes without the name.
// Many jobs differ only in their names, and decoding, validating and encoding a
// spec costs more than the rest of a submit. Only valid specs are stored. A valid
// name does not change the result, because specs that a longer name could make too
// large are not stored.
type SpecCache struct {
	mu    sync.RWMutex
	specs map[string]*CachedSpec
	bytes int
}

// The bounds of a SpecCache. When one is reached the cache is emptied.
const (
	maxCachedSpecs     = 1024
	maxCachedSpecBytes = 8 << 20
)

// Get returns the name of an encoded spec and the result of parsing it. parse is
// called for specs that are not cached. The error is a gRPC status.
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
		return // another call stored it, or the name was encoded in another form
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
