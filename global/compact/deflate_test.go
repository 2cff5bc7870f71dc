package compact_test

import (
	"bytes"
	"testing"

	"github.com/nusa-scheduler/nusa/global/compact"
)

func TestPack(t *testing.T) {
	spec := bytes.Repeat([]byte("image: alpine/3.22\n"), 1000)
	packed, err := compact.Pack(spec)
	if err != nil || len(packed) > len(spec)/20 {
		t.Fatalf("%d bytes, %v", len(packed), err)
	}
	if got, err := compact.Unpack(packed); err != nil || !bytes.Equal(got, spec) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := compact.Unpack(packed[:len(packed)/2]); err == nil {
		t.Error("a damaged record was read")
	}
	big, err := compact.Pack(make([]byte, 3<<20))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := compact.Unpack(big); err == nil {
		t.Error("a record that grows without bound was read")
	}
}
