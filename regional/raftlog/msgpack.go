package raftlog

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
)

// appendMsgpack encodes a command or a record. The result has the same bytes as that of
// msgpackHandle. appendMsgpack takes a third of the time, because it knows only the types
// that the log and snapshots use, and has no settings.
func appendMsgpack(b []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return append(b, msgpackNil)
		}
		return appendMsgpack(b, v.Elem())
	case reflect.Struct:
		n := v.NumField()
		b = appendLength(b, arrayFormat, n)
		for i := range n {
			b = appendMsgpack(b, v.Field(i))
		}
		return b
	case reflect.String:
		return append(appendLength(b, stringFormat, v.Len()), v.String()...)
	case reflect.Bool:
		if v.Bool() {
			return append(b, msgpackTrue)
		}
		return append(b, msgpackFalse)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return appendInt(b, v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return appendUint(b, v.Uint())
	case reflect.Slice:
		return appendSlice(b, v)
	case reflect.Map: // always a map of strings to strings
		if v.IsNil() {
			return append(b, msgpackNil)
		}
		m := v.Interface().(map[string]string)
		b = appendLength(b, mapFormat, len(m))
		for _, k := range slices.Sorted(maps.Keys(m)) {
			b = append(appendLength(b, stringFormat, len(k)), k...)
			b = append(appendLength(b, stringFormat, len(m[k])), m[k]...)
		}
		return b
	}
	panic(fmt.Sprintf("raftlog: the log has no encoding of %s", v.Type())) // TestMsgpackEqualsTheLibrary encodes all types
}

func appendSlice(b []byte, v reflect.Value) []byte {
	if v.IsNil() {
		return append(b, msgpackNil)
	}
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return append(appendLength(b, binaryFormat, v.Len()), v.Bytes()...)
	}
	b = appendLength(b, arrayFormat, v.Len())
	for i := range v.Len() {
		b = appendMsgpack(b, v.Index(i))
	}
	return b
}

const (
	msgpackNil, msgpackFalse, msgpackTrue = 0xc0, 0xc2, 0xc3
)

// lengthFormat says how a length is encoded. A length below fixedLimit is part of the first
// byte. A greater length follows the first byte in one byte (if the type has such a form),
// two or four.
type lengthFormat struct {
	fixed      byte
	fixedLimit int
	one        byte // 0: the type has no such form
	two, four  byte
}

var (
	arrayFormat  = lengthFormat{0x90, 16, 0, 0xdc, 0xdd}
	mapFormat    = lengthFormat{0x80, 16, 0, 0xde, 0xdf}
	stringFormat = lengthFormat{0xa0, 32, 0xd9, 0xda, 0xdb}
	binaryFormat = lengthFormat{0, 0, 0xc4, 0xc5, 0xc6}
)

func appendLength(b []byte, s lengthFormat, n int) []byte {
	switch {
	case n < s.fixedLimit:
		return append(b, s.fixed|byte(n))
	case s.one != 0 && n <= math.MaxUint8:
		return append(b, s.one, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, s.two), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, s.four), uint32(n))
}

func appendUint(b []byte, n uint64) []byte {
	switch {
	case n <= math.MaxInt8:
		return append(b, byte(n))
	case n <= math.MaxUint8:
		return append(b, 0xcc, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), n)
}

func appendInt(b []byte, n int64) []byte {
	switch {
	case n >= -32 && n <= math.MaxInt8:
		return append(b, byte(n))
	case n >= math.MinInt8 && n < 0:
		return append(b, 0xd0, byte(n))
	case n >= math.MinInt16 && n <= math.MaxInt16:
		return binary.BigEndian.AppendUint16(append(b, 0xd1), uint16(n))
	case n >= math.MinInt32 && n <= math.MaxInt32:
		return binary.BigEndian.AppendUint32(append(b, 0xd2), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(n))
}
