package wire

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Codec is protobuf's codec, but SubmitRequest, IncomingMessage and EncodedMessage stay
// encoded.
type Codec struct{ encoding.CodecV2 }

// NewCodec returns a Codec.
func NewCodec() Codec { return Codec{encoding.GetCodecV2("proto")} }

// Unmarshal decodes a message. If the message stays encoded, Unmarshal stores its bytes.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *SubmitRequest:
		m.Decode(data.Materialize())
		return nil
	case *IncomingMessage:
		m.buf = data.MaterializeToBuffer(mem.DefaultBufferPool())
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// Marshal encodes a message. If the message is already encoded, Marshal returns its bytes.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *EncodedMessage:
		return mem.BufferSlice{m.buffer()}, nil
	case *SubmitRequest:
		return mem.BufferSlice{mem.SliceBuffer(m.Encoded())}, nil
	}
	return c.CodecV2.Marshal(v)
}

// EncodedMessage is an encoded message to be sent. Marshal copies it.
type EncodedMessage struct{ head, body []byte }

// buffer returns a copy of the message. A large copy comes from a pool, to which gRPC
// returns it.
func (e *EncodedMessage) buffer() mem.Buffer {
	size := len(e.head) + len(e.body)
	if mem.IsBelowBufferPoolingThreshold(size) {
		return mem.SliceBuffer(append(append(make([]byte, 0, size), e.head...), e.body...))
	}
	pool := mem.DefaultBufferPool()
	b := pool.Get(size)
	copy((*b)[copy(*b, e.head):], e.body)
	return mem.NewBuffer(b, pool)
}

// IncomingMessage is a received message, still encoded, in a buffer of gRPC.
type IncomingMessage struct{ buf mem.Buffer }

// Bytes returns the encoded message. The bytes are valid until Free.
func (m *IncomingMessage) Bytes() []byte { return m.buf.ReadOnlyData() }

// Free releases the buffer. After Free no pointer into the buffer may be used.
func (m *IncomingMessage) Free() {
	m.buf.Free()
	m.buf = nil
}
