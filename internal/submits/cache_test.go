package submits

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestCacheIsBounded: the cache exceeds neither its count nor its bytes.
func TestCacheIsBounded(t *testing.T) {
	var c Cache[int]
	for i := range 2 * maxCachedSpecs {
		c.store(strings.Repeat("x", 16<<10)+fmt.Sprint(i), new(int))
		size := 0
		for rest := range c.specs {
			size += len(rest)
		}
		if n := len(c.specs); n > maxCachedSpecs || size > maxCachedSpecBytes {
			t.Fatalf("%d specs of %d bytes are cached", n, size)
		}
	}
}

// TestFieldNumbers compares the numbers with the descriptors.
func TestFieldNumbers(t *testing.T) {
	request, spec := (&nusav1.SubmitRequest{}).ProtoReflect().Descriptor().Fields(), (&nusav1.JobSpec{}).ProtoReflect().Descriptor().Fields()
	for name, want := range map[string]protowire.Number{
		"spec": fieldSpec, "idempotency_key": fieldIdempotencyKey, "check_revision": fieldCheckRevision, "again": fieldAgain, "tag": fieldTag,
	} {
		if f := request.ByNumber(want); f == nil || string(f.Name()) != name {
			t.Errorf("field %d is %v, want %s", want, f, name)
		}
	}
	if n := request.Len(); n != 5 {
		t.Errorf("SubmitRequest has %d fields: Fields reads 5", n)
	}
	if f := spec.ByNumber(specName); f == nil || f.Name() != "name" {
		t.Errorf("field %d of a spec is %v, want name", specName, f)
	}
}

// TestJobsOfOneSpecAreParsedOnce, whatever their names are. A spec with a second name, and one
// with a name that is not valid, are parsed each time.
func TestJobsOfOneSpecAreParsedOnce(t *testing.T) {
	var c Cache[string]
	parsed := 0
	get := func(raw []byte) string {
		name, v, err := c.Get(raw, func(s *nusav1.JobSpec) (string, int, error) {
			parsed++
			return s.GetNamespace(), 1, nil
		})
		if err != nil || *v != "team" {
			t.Fatalf("%q, %v, %v", name, v, err)
		}
		return name
	}
	spec := func(name string) []byte {
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(&nusav1.JobSpec{Name: name, Namespace: "team"})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for i, c := range []struct {
		raw  []byte
		name string
		want int // parsed so far
	}{
		{spec("a"), "a", 1}, {spec("b"), "b", 1}, {spec("Bad Name"), "Bad Name", 2},
		{append(spec("a"), spec("c")...), "c", 3}, {append(spec("a"), spec("c")...), "c", 4}, {spec("d"), "d", 4},
	} {
		if name := get(c.raw); name != c.name || parsed != c.want {
			t.Errorf("spec %d: name %q, parsed %d times; want %q, %d", i, name, parsed, c.name, c.want)
		}
	}
}
