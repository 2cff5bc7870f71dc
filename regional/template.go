package regional

import (
	"sync"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Many jobs are the same but for their names. To decode, judge and encode a spec
// costs more than all else that a submit does, so it is done once for them all:
// requests arrive encoded, and what a spec comes to is remembered by its bytes.

// submitted is a SubmitRequest whose spec is still encoded.
type submitted struct {
	spec  []byte
	key   string
	check int64
	again bool
}

// splitSubmit reads what is around the spec. Its error is a gRPC status.
func splitSubmit(raw []byte) (s submitted, err error) {
	for rest := raw; len(rest) > 0; {
		field, kind, tag := protowire.ConsumeTag(rest)
		n := protowire.ConsumeFieldValue(field, kind, rest[max(tag, 0):])
		if tag < 0 || n < 0 {
			return s, status.Errorf(codes.InvalidArgument, "the request cannot be decoded: %v", protowire.ParseError(min(tag, n)))
		}
		value := rest[tag : tag+n]
		rest = rest[tag+n:]
		number, _ := protowire.ConsumeVarint(value)
		switch bytes, _ := protowire.ConsumeBytes(value); {
		case field == 1 && kind == protowire.BytesType && s.spec == nil:
			s.spec = bytes
		case field == 1 && kind == protowire.BytesType: // parts of a message follow one another
			s.spec = append(s.spec[:len(s.spec):len(s.spec)], bytes...)
		case field == 2 && kind == protowire.BytesType:
			if s.key = string(bytes); !utf8.ValidString(s.key) {
				return s, status.Error(codes.InvalidArgument, "the request cannot be decoded: idempotency_key is not UTF-8")
			}
		case field == 3 && kind == protowire.VarintType:
			s.check = int64(number)
		case field == 4 && kind == protowire.VarintType:
			s.again = protowire.DecodeBool(number)
		}
	}
	return s, nil
}

// template is what a spec without its job's name comes to. Shared: never written
// to.
type template struct {
	job      state.Job // Spec: the encoding but for the name
	warnings []string
}

// named is the job of that name. Its spec's encoding is the deterministic one,
// in which the name comes first.
func (t *template) named(name string) state.Job {
	j := t.job
	j.Key.Job = name
	j.Spec = make([]byte, 0, len(name)+4+len(t.job.Spec))
	j.Spec = protowire.AppendTag(j.Spec, nameField, protowire.BytesType)
	j.Spec = append(protowire.AppendString(j.Spec, name), t.job.Spec...)
	return j
}

const (
	// nameField is the number of JobSpec.name, the least of all.
	nameField = 1
	// longestName bounds what a valid name takes of an encoded spec.
	longestName = 72
)

// cutName cuts the name off an encoded spec that begins with it.
func cutName(spec []byte) (name string, rest []byte, ok bool) {
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

// templates remembers what specs come to, by their bytes without the name. Only
// what is valid is remembered, and a valid name changes nothing about that: not
// what a longer one could make too large either.
type templates struct {
	mu    sync.RWMutex
	known map[string]*template
	bytes int
}

const (
	// maxTemplates are remembered at most, of maxTemplateBytes in all; then all
	// are learnt anew.
	maxTemplates, maxTemplateBytes = 1024, 8 << 20
)

// read answers the name and the template of an encoded spec. learn judges a
// decoded one. The error is a gRPC status.
func (t *templates) read(raw []byte, learn func(*nusav1.JobSpec) (template, error)) (string, *template, error) {
	name, rest, ok := cutName(raw)
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
	if ok && !hasName(rest) && len(learnt.job.Spec)+longestName <= job.MaxSize {
		t.remember(string(rest), &learnt)
	}
	return spec.GetName(), &learnt, nil
}

func (t *templates) remember(rest string, learnt *template) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known[rest] != nil {
		return // since, or the name came in another form
	}
	size := 2 * len(rest)
	if len(t.known) >= maxTemplates || t.bytes+size > maxTemplateBytes {
		t.known, t.bytes = nil, 0
	}
	if t.known == nil {
		t.known = map[string]*template{}
	}
	t.known[rest] = learnt
	t.bytes += size
}
