package emulate

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// used holds the kinds of GlobalMessage that an emulated region uses, by field number.
var used = map[protowire.Number]bool{
	1:  true, // welcome
	2:  true, // refused
	3:  true, // lease
	4:  true, // orders
	7:  true, // shapes
	12: true, // changes of peers
	13: true, // changes of asks
	14: true, // changes of the column
	15: true, // changes of the matrix
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
		if !used[kind] {
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
