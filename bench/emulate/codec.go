package emulate

import (
	"fmt"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// used returns the kinds of GlobalMessage that an emulated region uses, by field number.
var used = sync.OnceValue(func() map[protowire.Number]bool {
	return numbersOf(&nusav1.GlobalMessage{}, "welcome", "refused", "lease", "orders", "shapes",
		"peer_changes", "ask_changes", "column_changes", "matrix_changes")
})

// numbersOf returns the numbers of the named fields of a message.
func numbersOf(m proto.Message, names ...protoreflect.Name) map[protowire.Number]bool {
	out := map[protowire.Number]bool{}
	for _, name := range names {
		out[m.ProtoReflect().Descriptor().Fields().ByName(name).Number()] = true
	}
	return out
}

// codec decodes a message only if an emulated region uses the message. The lists of peers
// and the matrices that a large federation sends are gigabytes. To decode them would take
// CPU time from the measured server.
type codec struct{}

// Name implements encoding.CodecV2. The messages on the wire are ordinary protobuf.
func (codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2("proto").Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*nusav1.GlobalMessage); ok {
		kind, err := kindOf(data)
		if err != nil {
			return err
		}
		if !used()[kind] {
			m.Reset()
			return nil
		}
	}
	return encoding.GetCodecV2("proto").Unmarshal(data, v)
}

// kindOf returns the field number of a message's first field; 0 for an empty message. A
// GlobalMessage has only one field, its kind.
func kindOf(data mem.BufferSlice) (protowire.Number, error) {
	for _, b := range data {
		if b.Len() == 0 {
			continue
		}
		kind, _, n := protowire.ConsumeTag(b.ReadOnlyData())
		if n < 0 {
			return 0, fmt.Errorf("message of the global tier: %w", protowire.ParseError(n))
		}
		return kind, nil
	}
	return 0, nil
}
