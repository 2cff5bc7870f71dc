package wire

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// fieldScanner reads the fields of an encoded message in order.
type fieldScanner struct {
	rest []byte
	num  protowire.Number
	v    uint64 // the value of a varint or 64-bit field
	b    []byte // the bytes of a field with a length
	err  error
}

// next reads the next field. It returns false at the end and after an error. It skips
// fields of other wire types.
func (s *fieldScanner) next() bool {
	for s.err == nil && len(s.rest) > 0 {
		num, kind, n := protowire.ConsumeTag(s.rest)
		if n >= 0 {
			s.num, s.rest = num, s.rest[n:]
			switch kind {
			case protowire.VarintType:
				s.v, n = protowire.ConsumeVarint(s.rest)
			case protowire.Fixed64Type:
				s.v, n = protowire.ConsumeFixed64(s.rest)
			case protowire.BytesType:
				s.b, n = protowire.ConsumeBytes(s.rest)
			default:
				n = protowire.ConsumeFieldValue(num, kind, s.rest)
			}
			if n >= 0 {
				s.rest = s.rest[n:]
				if kind == protowire.VarintType || kind == protowire.Fixed64Type || kind == protowire.BytesType {
					return true
				}
				continue
			}
		}
		s.err = Malformed(protowire.ParseError(n))
	}
	return false
}

// Malformed returns the gRPC status for a message of an agent that cannot be decoded.
func Malformed(err error) error {
	return status.Errorf(codes.Internal, "decode a message of the agent: %v", err)
}
