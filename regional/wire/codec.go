package wire

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Codec is protobuf's codec, except for the messages of this package that stay
// encoded: SubmitRequest, IncomingMessage and EncodedMessage.
type Codec struct{ encoding.CodecV2 }

// NewCodec returns a Codec.
func NewCodec() Codec { return Codec{encoding.GetCodecV2("proto")} }

// Unmarshal decodes a message, or stores the bytes of one that stays encoded.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *SubmitRequest:
		m.raw = data.Materialize()
		return nil
	case *IncomingMessage:
		m.buf = data.MaterializeToBuffer(mem.DefaultBufferPool())
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// Marshal encodes a message, or sends the bytes of one that is encoded already.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *EncodedMessage:
		return mem.BufferSlice{m.buffer()}, nil
	case *SubmitRequest:
		return mem.BufferSlice{mem.SliceBuffer(m.raw)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// EncodedMessage is an encoded message to send. Marshal copies it.
type EncodedMessage struct{ head, body []byte }

// buffer returns a copy. A large one comes from a pool, to which gRPC returns it.
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

// IncomingMessage is a received message, still encoded, in a buffer of gRPC's.
type IncomingMessage struct{ buf mem.Buffer }

// Bytes returns the encoded message, valid until Free.
func (m *IncomingMessage) Bytes() []byte { return m.buf.ReadOnlyData() }

// Free releases the buffer. No pointer into it may be used afterwards.
func (m *IncomingMessage) Free() {
	m.buf.Free()
	m.buf = nil
}
