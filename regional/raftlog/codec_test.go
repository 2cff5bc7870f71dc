package raftlog

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/internal/golden"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestLogFormat: fields are read by position. So the types in the log and in snapshots may
// get new fields only at their end. testdata/log_format.txt lists the fields. It has the
// names of version 1, which wrote fields by name. A renamed field has its old name in a
// codec tag.
func TestLogFormat(t *testing.T) {
	const file = "testdata/log_format.txt"
	types := map[string][]string{}
	collect(types, reflect.TypeFor[state.Command]())
	collect(types, reflect.TypeFor[state.Record]())
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(types)) {
		fmt.Fprintf(&out, "%s: %s\n", name, strings.Join(types[name], ", "))
	}
	before, err := os.ReadFile(file)
	if err != nil && !golden.Updating() {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(before)) {
		name, fields, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if now := strings.Join(types[name], ", "); now != fields && !strings.HasPrefix(now, fields+", ") {
			t.Errorf("%s was written as\n  %s\nand would be read as\n  %s\nAdd fields at the end, or bump formatVersion and read both.", name, fields, now)
		}
	}
	if golden.Updating() {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if out.String() != string(before) {
		t.Errorf("%s is not up to date: run go test ./regional/raftlog -run TestLogFormat -update", file)
	}
}

// collect lists the fields of a struct and of the structs in it.
func collect(out map[string][]string, t reflect.Type) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		collect(out, t.Elem())
	case reflect.Struct:
		if _, seen := out[t.Name()]; seen {
			return
		}
		out[t.Name()] = nil
		for f := range fieldsOf(t) {
			out[t.Name()] = append(out[t.Name()], storedName(f)+" "+f.Type.String())
			collect(out, f.Type)
		}
	}
}

// storedName returns the name of a field in version 1.
func storedName(f reflect.StructField) string {
	if name, _, _ := strings.Cut(f.Tag.Get("codec"), ","); name != "" {
		return name
	}
	return f.Name
}

func fieldsOf(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && !yield(f) {
				return
			}
		}
	}
}

// TestVersion1IsRead: version 1 wrote fields by name.
func TestVersion1IsRead(t *testing.T) {
	old := newMsgpackHandle()
	old.StructToArray = false
	cmd := sample("n1")
	var raw []byte
	if err := codec.NewEncoderBytes(&raw, old).Encode(&cmd); err != nil {
		t.Fatal(err)
	}
	entry := append(binary.AppendUvarint([]byte{1}, uint64(len(raw))), raw...)
	back, err := decodeEntry(entry)
	if err != nil || len(back) != 1 || !reflect.DeepEqual(back[0].UpsertNode.Node.Labels, cmd.UpsertNode.Node.Labels) || back[0].UpsertNode.Node.Capacity != cmd.UpsertNode.Node.Capacity {
		t.Errorf("read %+v, %v", back, err)
	}
}
