package wire

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Codec is protobuf's but for what there is so much of that messages are not
// made of it. Submits stay encoded, among the unknown fields of an empty message,
// so that they can still be passed on like any other; what agents say stays in
// the buffer it came in, and what is encoded already is sent as it is.
type Codec struct{ encoding.CodecV2 }

func NewCodec() Codec { return Codec{encoding.GetCodecV2("proto")} }

// Unmarshal decodes what is not to stay encoded.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *nusav1.SubmitRequest:
		m.ProtoReflect().SetUnknown(data.Materialize())
		return nil
	case *IncomingMessage:
		m.buf = data.MaterializeToBuffer(mem.DefaultBufferPool())
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// Marshal encodes what is not encoded.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	if e, ok := v.(*EncodedMessage); ok {
		return mem.BufferSlice{e.buffer()}, nil
	}
	return c.CodecV2.Marshal(v)
}

// EncodedMessage is a message as it stands on the wire. It is copied when it is sent.
type EncodedMessage struct{ head, body []byte }

// buffer is a copy, given back once it is on its way if it is large enough to be
// worth that.
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

// IncomingMessage is a message as it stands on the wire, in a buffer of gRPC's.
type IncomingMessage struct{ buf mem.Buffer }

func (m *IncomingMessage) Bytes() []byte { return m.buf.ReadOnlyData() }

// Free gives the buffer back, which nothing may point into any more.
func (m *IncomingMessage) Free() {
	m.buf.Free()
	m.buf = nil
}
