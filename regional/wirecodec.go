package regional

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// wireCodec is protobuf's but for what there is so much of that messages are not
// made of it. Submits stay encoded, among the unknown fields of an empty message,
// so that they can still be passed on like any other; what agents say stays in
// the buffer it came in, and what is encoded already is sent as it is.
type wireCodec struct{ encoding.CodecV2 }

func newWireCodec() wireCodec { return wireCodec{encoding.GetCodecV2("proto")} }

// Unmarshal decodes what is not to stay encoded.
func (c wireCodec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *nusav1.SubmitRequest:
		m.ProtoReflect().SetUnknown(data.Materialize())
		return nil
	case *incomingMessage:
		m.buf = data.MaterializeToBuffer(mem.DefaultBufferPool())
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// Marshal encodes what is not encoded.
func (c wireCodec) Marshal(v any) (mem.BufferSlice, error) {
	if e, ok := v.(*wireMessage); ok {
		return mem.BufferSlice{e.buffer()}, nil
	}
	return c.CodecV2.Marshal(v)
}

// wireMessage is a message as it stands on the wire. It is copied when it is sent.
type wireMessage struct{ head, body []byte }

// buffer is a copy, given back once it is on its way if it is large enough to be
// worth that.
func (e *wireMessage) buffer() mem.Buffer {
	size := len(e.head) + len(e.body)
	if mem.IsBelowBufferPoolingThreshold(size) {
		return mem.SliceBuffer(append(append(make([]byte, 0, size), e.head...), e.body...))
	}
	pool := mem.DefaultBufferPool()
	b := pool.Get(size)
	copy((*b)[copy(*b, e.head):], e.body)
	return mem.NewBuffer(b, pool)
}

// incomingMessage is a message as it stands on the wire, in a buffer of gRPC's.
type incomingMessage struct{ buf mem.Buffer }

func (m *incomingMessage) bytes() []byte { return m.buf.ReadOnlyData() }

// free gives the buffer back, which nothing may point into any more.
func (m *incomingMessage) free() {
	m.buf.Free()
	m.buf = nil
}
