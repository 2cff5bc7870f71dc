package submits

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Codec is protobuf's codec, but a Request stays encoded.
type Codec struct{ encoding.CodecV2 }

// NewCodec returns a Codec.
func NewCodec() Codec { return Codec{encoding.GetCodecV2("proto")} }

// Unmarshal decodes a message. Of a Request it stores the bytes.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*Request); ok {
		r.raw = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// Marshal encodes a message. Of a Request it returns the bytes.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*Request); ok {
		return mem.BufferSlice{mem.SliceBuffer(r.raw)}, nil
	}
	return c.CodecV2.Marshal(v)
}
