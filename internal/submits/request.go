package submits

import (
	"sync"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The fields of nusav1.SubmitRequest, and the name in a nusav1.JobSpec.
const (
	fieldSpec           protowire.Number = 1
	fieldIdempotencyKey protowire.Number = 2
	fieldCheckRevision  protowire.Number = 3
	fieldAgain          protowire.Number = 4
	fieldTag            protowire.Number = 5

	specName protowire.Number = 1
)

// Request is a nusav1.SubmitRequest that stays encoded until it is first read. The server
// reads Fields, in which the spec stays encoded. Interceptors use the getters or
// ProtoReflect, which decode the message. Codec neither decodes nor encodes a Request, so a
// server that forwards the request passes on the same bytes. A decoded message must not be
// changed.
type Request struct {
	raw []byte

	once    sync.Once
	message *nusav1.SubmitRequest
	err     error
}

// NewRequest returns the request that is encoded in raw.
func NewRequest(raw []byte) *Request { return &Request{raw: raw} }

// Decode sets the encoded request.
func (r *Request) Decode(raw []byte) { r.raw = raw }

// Encoded returns the encoded request.
func (r *Request) Encoded() []byte { return r.raw }

// Fields are the fields of a Request, with the spec still encoded.
type Fields struct {
	Spec          []byte
	Key           string
	CheckRevision int64
	Again         bool
	Tag           string
}

// Message decodes the request. The error is a gRPC status. With an error, the message has
// the parts that could be decoded.
func (r *Request) Message() (*nusav1.SubmitRequest, error) {
	r.once.Do(func() {
		r.message = &nusav1.SubmitRequest{}
		if err := proto.Unmarshal(r.raw, r.message); err != nil {
			r.err = status.Errorf(codes.InvalidArgument, "the request cannot be decoded: %v", err)
		}
	})
	return r.message, r.err
}

// ProtoReflect returns the decoded message.
func (r *Request) ProtoReflect() protoreflect.Message {
	m, _ := r.Message()
	return m.ProtoReflect()
}

// GetSpec is the getter of nusav1.SubmitRequest.
func (r *Request) GetSpec() *nusav1.JobSpec {
	m, _ := r.Message()
	return m.GetSpec()
}

// GetIdempotencyKey is the getter of nusav1.SubmitRequest.
func (r *Request) GetIdempotencyKey() string {
	m, _ := r.Message()
	return m.GetIdempotencyKey()
}

// GetCheckRevision is the getter of nusav1.SubmitRequest.
func (r *Request) GetCheckRevision() int64 {
	m, _ := r.Message()
	return m.GetCheckRevision()
}

// GetAgain is the getter of nusav1.SubmitRequest.
func (r *Request) GetAgain() bool {
	m, _ := r.Message()
	return m.GetAgain()
}

// Fields reads the request without decoding its spec. The error is a gRPC status.
func (r *Request) Fields() (f Fields, err error) {
	for rest := r.raw; len(rest) > 0; {
		field, kind, tag := protowire.ConsumeTag(rest)
		n := protowire.ConsumeFieldValue(field, kind, rest[max(tag, 0):])
		if tag < 0 || n < 0 {
			return f, status.Errorf(codes.InvalidArgument, "the request cannot be decoded: %v", protowire.ParseError(min(tag, n)))
		}
		value := rest[tag : tag+n]
		rest = rest[tag+n:]
		number, _ := protowire.ConsumeVarint(value)
		bytes, _ := protowire.ConsumeBytes(value)
		switch {
		case field == fieldSpec && kind == protowire.BytesType && f.Spec == nil:
			f.Spec = bytes
		case field == fieldSpec && kind == protowire.BytesType: // a message field that occurs twice is concatenated, as in protobuf
			f.Spec = append(f.Spec[:len(f.Spec):len(f.Spec)], bytes...)
		case field == fieldIdempotencyKey && kind == protowire.BytesType:
			f.Key = string(bytes)
			if !utf8.ValidString(f.Key) {
				return f, status.Error(codes.InvalidArgument, "the request cannot be decoded: idempotency_key is not UTF-8")
			}
		case field == fieldCheckRevision && kind == protowire.VarintType:
			f.CheckRevision = int64(number)
		case field == fieldAgain && kind == protowire.VarintType:
			f.Again = protowire.DecodeBool(number)
		case field == fieldTag && kind == protowire.BytesType:
			f.Tag = string(bytes)
			if !utf8.ValidString(f.Tag) {
				return f, status.Error(codes.InvalidArgument, "the request cannot be decoded: tag is not UTF-8")
			}
		}
	}
	return f, nil
}
