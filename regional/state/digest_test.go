package state

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/internal/golden"
)

// TestDigestedFields: servers of different versions compare their digests. So a new field of a type must not
// change the digest while the field is zero: name the field in fieldsBefore. A new type may change the file.
func TestDigestedFields(t *testing.T) {
	found := map[reflect.Type]int{}
	var walk func(reflect.Type)
	walk = func(of reflect.Type) {
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice:
			walk(of.Elem())
		case reflect.Struct:
			if _, done := found[of]; done {
				return
			}
			n := of.NumField()
			if before, ok := fieldsBefore[of]; ok {
				n = before
			}
			found[of] = n
			for i := range of.NumField() {
				walk(of.Field(i).Type)
			}
		}
	}
	record := reflect.TypeFor[Record]()
	for i := range record.NumField() {
		walk(record.Field(i).Type)
	}
	var lines []string
	for of, n := range found {
		lines = append(lines, fmt.Sprintf("%s %d\n", of, n))
	}
	slices.Sort(lines)
	golden.File(t, "testdata/digested_fields.txt", strings.Join(lines, ""))
}
