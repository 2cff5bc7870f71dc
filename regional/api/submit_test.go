package api

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"reflect"
	"sort"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/internal/submits"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// testJobs returns the Jobs service of region r and a master with an empty spec cache.
func testJobs() (jobs, *Master) {
	none, err := rights.New(nil)
	if err != nil {
		panic(err)
	}
	return jobs{s: &Server{Region: &nusav1.RegionDefinition{Name: "r"}, Rights: func() *rights.Set { return none }}}, &Master{Specs: &wire.SpecCache{}}
}

// counted returns parseSpec with a counter of its calls in parsed.
func counted(j jobs, parsed *int) func(*nusav1.JobSpec) (wire.CachedSpec, error) {
	return func(spec *nusav1.JobSpec) (wire.CachedSpec, error) {
		*parsed++
		return j.parseSpec(spec)
	}
}

// TestCachedSpecEqualsParsedSpec: for jobs of other names, a cached spec gives the same
// command as parsing each spec.
func TestCachedSpecEqualsParsedSpec(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	parsed := 0
	j, m := testJobs()
	parse := counted(j, &parsed)
	for i := range 500 {
		spec := testSpec("first")
		spec.Groups["main"].Count = proto.Int32(int32(i))
		if r.Intn(2) == 0 {
			spec.Labels = map[string]string{"i": fmt.Sprint(i)}
			spec.Type = nusav1.JobType_JOB_TYPE_BATCH
		}
		if r.Intn(2) == 0 {
			spec.Groups["other"] = proto.CloneOf(spec.Groups["main"])
			spec.Namespace = "n" + fmt.Sprint(i)
		}
		// The same encoded spec is used under several names, because the encoding of a map
		// has no fixed order.
		first, err := proto.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := submits.CutName(first)
		before := parsed
		for k := range 3 {
			name := fmt.Sprintf("job-%d-%d", i, k)
			raw := append(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name), rest...)
			got, cached, err := m.Specs.Get(raw, parse)
			if err != nil || got != name {
				t.Fatalf("read as %q, %v", got, err)
			}
			alone := proto.CloneOf(spec)
			alone.Name = name
			if err := checkSpec(alone, "r"); err != nil {
				t.Fatal(err)
			}
			want, _ := wire.Deterministic.Marshal(alone)
			named := cached.Named(got)
			if !bytes.Equal(named.Spec, want) {
				t.Fatalf("encoded as %q, want %q", named.Spec, want)
			}
			if !reflect.DeepEqual(&named, wire.JobFromProto(alone, want, true, 0)) {
				t.Fatalf("%+v, want %+v", named, wire.JobFromProto(alone, want, true, 0))
			}
			if !reflect.DeepEqual(cached.Warnings, job.Warnings(alone)) {
				t.Fatalf("warnings %q", cached.Warnings)
			}
		}
		if parsed != before+1 {
			t.Fatalf("parsed %d times", parsed-before)
		}
	}
}

// TestCachedSpecIsTooLargeWithALongerName: a spec that is too large only with a longer name
// is refused under that name, although the cache has it under a shorter name.
func TestCachedSpecIsTooLargeWithALongerName(t *testing.T) {
	j, m := testJobs()
	spec := testSpec("a")
	task := spec.Groups["main"].Tasks["main"]
	task.Env = map[string]string{}
	for i := range 8 {
		task.Env[fmt.Sprint("FULL_", i)] = strings.Repeat("x", 120_000)
	}
	sized := func(name string, size int) []byte {
		spec.Name, task.Env["D"] = name, strings.Repeat("x", size)
		raw, _ := wire.Deterministic.Marshal(spec)
		return raw
	}
	// The largest spec that is accepted under the shortest name.
	largest := sort.Search(job.MaxSize, func(n int) bool {
		_, _, err := new(wire.SpecCache).Get(sized("a", n+1), j.parseSpec)
		return err != nil
	})
	if _, _, err := m.Specs.Get(sized("a", largest), j.parseSpec); err != nil {
		t.Fatal(err)
	}
	_, _, want := new(wire.SpecCache).Get(sized("a-longer-name", largest), j.parseSpec)
	if _, _, err := m.Specs.Get(sized("a-longer-name", largest), j.parseSpec); want == nil || fmt.Sprint(err) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", err, want)
	}
}

// TestSubmitRequestIsReadAsProtobufReadsIt: hand-written reading equals protobuf's, for
// every valid and invalid encoding. The test compares the fields that are read by hand, the
// getters and the forwarded bytes.
func TestSubmitRequestIsReadAsProtobufReadsIt(t *testing.T) {
	field := func(n protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), b)
	}
	cat := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	spec, _ := proto.Marshal(testSpec("a"))
	_, rest, _ := submits.CutName(spec)
	name := func(s string) []byte { return field(1, []byte(s)) }
	again := protowire.AppendVarint(protowire.AppendTag(nil, 4, protowire.VarintType), 1)
	check := protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), ^uint64(0))
	for what, raw := range map[string][]byte{
		"plain":           field(1, cat(name("b"), rest)),
		"name last":       field(1, cat(rest, name("b"))),
		"two names":       field(1, cat(name("b"), rest, name("c"))),
		"the same twice":  field(1, cat(name("b"), rest, name("b"))),
		"in two parts":    cat(field(1, rest), field(2, []byte("k")), field(1, name("b"))),
		"name from here":  field(1, cat(name("b@r"), rest)),
		"all fields":      cat(again, check, field(2, []byte("k")), field(1, cat(name("b"), rest))),
		"key twice":       cat(field(2, []byte("k")), field(2, []byte("l")), field(1, cat(name("b"), rest))),
		"unknown fields":  cat(field(99, []byte("u")), field(1, cat(name("b"), rest, field(99, []byte("u"))))),
		"wrong types":     cat(protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 7), field(3, nil), field(1, cat(name("b"), rest))),
		"no spec":         again,
		"nothing":         nil,
		"empty spec":      field(1, nil),
		"bad name":        field(1, cat(name("B!"), rest)),
		"elsewhere":       field(1, cat(name("b@s"), rest)),
		"cut short":       field(1, cat(name("b"), rest))[:9],
		"spec cut short":  field(1, spec[:len(spec)-3]),
		"name not UTF-8":  field(1, cat(name("\xff"), rest)),
		"key not UTF-8":   cat(field(2, []byte("\xff")), field(1, cat(name("b"), rest))),
		"name as number":  field(1, cat(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7), rest)),
		"not even a tag":  {0xff},
		"group unmatched": {0x0c},
	} {
		t.Run(what, func(t *testing.T) {
			j, m := testJobs()
			if _, _, err := m.Specs.Get(spec, j.parseSpec); err != nil { // the cache now has the spec without its name
				t.Fatal(err)
			}
			var submit wire.SubmitRequest
			if err := wire.NewCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, &submit); err != nil {
				t.Fatal(err)
			}
			if sent, err := wire.NewCodec().Marshal(&submit); err != nil || !bytes.Equal(sent.Materialize(), raw) {
				t.Errorf("forwarded as %q, %v", sent.Materialize(), err)
			}
			got, _, err := j.parseSubmit(t.Context(), m, &submit)

			var req nusav1.SubmitRequest
			if proto.Unmarshal(raw, &req) != nil {
				if status.Code(err) != codes.InvalidArgument {
					t.Errorf("read what cannot be decoded: %+v, %v", got, err)
				}
				return
			}
			if !proto.Equal(&submit, &req) || !proto.Equal(submit.GetSpec(), req.GetSpec()) || submit.GetIdempotencyKey() != req.GetIdempotencyKey() ||
				submit.GetCheckRevision() != req.GetCheckRevision() || submit.GetAgain() != req.GetAgain() {
				t.Errorf("an interceptor sees %v, want %v", submit.ProtoReflect().Interface(), &req)
			}
			if wrong := checkSpec(req.Spec, "r"); wrong != nil {
				if err == nil || err.Error() != wrong.Error() {
					t.Errorf("%v, want %v", err, wrong)
				}
				return
			}
			encoded, _ := wire.Deterministic.Marshal(req.Spec)
			want := &state.SubmitLocalJob{Job: *wire.JobFromProto(req.Spec, encoded, true, 0), CheckRevision: req.CheckRevision, Again: req.Again}
			if err != nil {
				t.Fatal(err)
			}
			if (got.Idempotency.Key != "" || req.IdempotencyKey != "") && got.Idempotency.Key != req.IdempotencyKey {
				t.Errorf("key %q, want %q", got.Idempotency.Key, req.IdempotencyKey)
			}
			got.Idempotency = state.Idempotency{}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("read as %+v, want %+v", got, want)
			}
		})
	}
}

func testSpec(name string) *nusav1.JobSpec {
	config, _ := structpb.NewStruct(map[string]any{"command": "/bin/true"})
	return &nusav1.JobSpec{Name: name, Groups: map[string]*nusav1.Group{"main": {
		Count: proto.Int32(1),
		Tasks: map[string]*nusav1.Task{"main": {Driver: "process", Config: config, Resources: &nusav1.Resources{CpuMilli: 10, MemoryBytes: 16 << 20}}},
	}}}
}

// TestInterceptorSeesTheSubmittedJob: an interceptor reads the job with the getters of the
// generated request.
func TestInterceptorSeesTheSubmittedJob(t *testing.T) {
	raw, err := proto.Marshal(&nusav1.SubmitRequest{Spec: testSpec("web"), IdempotencyKey: "key"})
	if err != nil {
		t.Fatal(err)
	}
	decode := func(v any) error { return wire.NewCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, v) }
	refused := status.Error(codes.PermissionDenied, "refused")
	_, err = submits.SubmitHandler(jobs{}, t.Context(), decode, func(_ context.Context, req any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
		r, ok := req.(interface {
			GetSpec() *nusav1.JobSpec
			GetIdempotencyKey() string
		})
		if !ok || info.FullMethod != "/nusa.v1.Jobs/Submit" || r.GetSpec().GetName() != "web" || r.GetIdempotencyKey() != "key" {
			t.Errorf("%s of %v", info.FullMethod, req)
		}
		return nil, refused
	})
	if err != refused {
		t.Errorf("the call returns %v", err)
	}
}
