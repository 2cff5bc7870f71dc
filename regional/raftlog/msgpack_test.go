package raftlog

import (
	"bytes"
	"fmt"
	"math/rand"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestMsgpackEqualsTheLibrary: every command and record is encoded to the same bytes as by
// the library, which also decodes them.
func TestMsgpackEqualsTheLibrary(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for range 3000 {
		for _, typ := range []reflect.Type{reflect.TypeFor[state.Command](), reflect.TypeFor[state.Record]()} {
			v := reflect.New(typ)
			scramble(r, v.Elem(), 0)
			if c, ok := v.Interface().(*state.Command); ok {
				c.Batch = nil // never written
			}
			var want []byte
			if err := codec.NewEncoderBytes(&want, msgpackHandle).Encode(v.Interface()); err != nil {
				t.Fatal(err)
			}
			if got := appendMsgpack(nil, v.Elem()); !bytes.Equal(got, want) {
				t.Fatalf("%.2000s\nis encoded differently", fmt.Sprintf("%+v", v.Elem()))
			}
			back := reflect.New(typ)
			if err := codec.NewDecoderBytes(want, msgpackHandle).Decode(back.Interface()); err != nil {
				t.Fatal(err)
			}
			if again := appendMsgpack(nil, back.Elem()); !bytes.Equal(again, want) {
				t.Fatalf("%.2000s\nis decoded differently", fmt.Sprintf("%+v", v.Elem()))
			}
		}
	}
}

// scramble sets a value to lengths and numbers at the limits of their encodings.
func scramble(r *rand.Rand, v reflect.Value, depth int) {
	numbers := []int64{0, 1, 31, 32, 127, 128, 255, 256, 1<<15 - 1, 1 << 15, 1<<16 - 1, 1 << 16, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<63 - 1}
	n := numbers[r.Intn(len(numbers))]
	length := []int{0, 1, 2, 15, 16, 31, 32, 255, 256}[r.Intn(9)]
	switch v.Kind() {
	case reflect.Pointer:
		if depth < 4 && r.Intn(4) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			scramble(r, v.Elem(), depth+1)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[state.Command]() && depth > 0 {
			return
		}
		for i := range v.NumField() {
			scramble(r, v.Field(i), depth+1)
		}
	case reflect.String:
		if r.Intn(200) == 0 {
			length = 1 << 16
		}
		v.SetString(strings.Repeat("é"[:1+r.Intn(2)], length))
	case reflect.Bool:
		v.SetBool(r.Intn(2) == 0)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(n - int64(r.Intn(2))*2*n - int64(r.Intn(2)))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(n) << r.Intn(2))
	case reflect.Slice:
		switch {
		case r.Intn(3) == 0:
		case v.Type().Elem().Kind() == reflect.Uint8:
			v.SetBytes(make([]byte, length))
		default:
			if depth > 2 {
				length = r.Intn(3)
			}
			v.Set(reflect.MakeSlice(v.Type(), length, length))
			for i := range length {
				scramble(r, v.Index(i), depth+2)
			}
		}
	case reflect.Map:
		m := map[string]string{}
		for range r.Intn(20) {
			m[strings.Repeat("k", r.Intn(40))] = strings.Repeat("v", r.Intn(40))
		}
		v.Set(reflect.ValueOf(m))
	}
}
