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

// Many jobs differ only in their names. Decoding, validating and encoding a spec
// costs more than the rest of a submit, so it is done once for all of them:
// requests stay encoded, and the result for a spec is cached by its bytes.

// CachedSpec is what a spec without its job's name comes to. Shared: never written
// to.
type CachedSpec struct {
	Job      state.Job // Spec: the encoding but for the name
	Warnings []string
}

// Named is the job of that name. Its spec's encoding is the deterministic one,
// in which the name comes first.
func (t *CachedSpec) Named(name string) state.Job {
	j := t.Job
	j.Key.Job = name
	j.Spec = make([]byte, 0, len(name)+4+len(t.Job.Spec))
	j.Spec = protowire.AppendTag(j.Spec, nameField, protowire.BytesType)
	j.Spec = append(protowire.AppendString(j.Spec, name), t.Job.Spec...)
	return j
}

const (
	// nameField is the number of JobSpec.name, the least of all.
	nameField = 1
	// maxEncodedName bounds what a valid name takes of an encoded spec.
	maxEncodedName = 72
)

// CutName cuts the name off an encoded spec that begins with it.
func CutName(spec []byte) (name string, rest []byte, ok bool) {
	field, kind, tag := protowire.ConsumeTag(spec)
	if tag < 0 || field != nameField || kind != protowire.BytesType {
		return "", spec, false
	}
	raw, n := protowire.ConsumeBytes(spec[tag:])
	if n < 0 {
		return "", spec, false
	}
	return string(raw), spec[tag+n:], true
}

// hasName says that an encoded spec names the job: the last name would count.
func hasName(spec []byte) bool {
	for len(spec) > 0 {
		field, _, n := protowire.ConsumeField(spec)
		if n < 0 || field == nameField {
			return true
		}
		spec = spec[n:]
	}
	return false
}

// SpecCache remembers what specs come to, by their bytes without the name. Only
// what is valid is remembered, and a valid name changes nothing about that: not
// what a longer one could make too large either.
type SpecCache struct {
	mu    sync.RWMutex
	known map[string]*CachedSpec
	bytes int
}

const (
	// maxCachedSpecs are remembered at most, of maxCachedSpecBytes in all; then all
	// are learnt anew.
	maxCachedSpecs, maxCachedSpecBytes = 1024, 8 << 20
)

// Get answers the name and the template of an encoded spec. learn judges a
// decoded one. The error is a gRPC status.
func (t *SpecCache) Get(raw []byte, learn func(*nusav1.JobSpec) (CachedSpec, error)) (string, *CachedSpec, error) {
	name, rest, ok := CutName(raw)
	if ok && job.ValidName(name) {
		t.mu.RLock()
		known := t.known[string(rest)]
		t.mu.RUnlock()
		if known != nil {
			return name, known, nil
		}
	}
	var spec *nusav1.JobSpec
	if raw != nil {
		spec = &nusav1.JobSpec{}
		if err := proto.Unmarshal(raw, spec); err != nil {
			return "", nil, status.Errorf(codes.InvalidArgument, "the spec cannot be decoded: %v", err)
		}
	}
	learnt, err := learn(spec)
	if err != nil {
		return "", nil, err
	}
	if ok && !hasName(rest) && len(learnt.Job.Spec)+maxEncodedName <= job.MaxSize {
		t.remember(string(rest), &learnt)
	}
	return spec.GetName(), &learnt, nil
}

func (t *SpecCache) remember(rest string, learnt *CachedSpec) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known[rest] != nil {
		return // since, or the name came in another form
	}
	size := 2 * len(rest)
	if len(t.known) >= maxCachedSpecs || t.bytes+size > maxCachedSpecBytes {
		t.known, t.bytes = nil, 0
	}
	if t.known == nil {
		t.known = map[string]*CachedSpec{}
	}
	t.known[rest] = learnt
	t.bytes += size
}
