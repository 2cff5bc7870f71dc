package probe

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"time"
)

// A probe packet has the same size in both directions, so that a responder
// cannot be used for amplification:
//
//	0  magic "NuPr"
//	4  version
//	5  kind
//	6  responses: span, how many bits of "arrived" count, 1..64
//	7  zero
//	8  the prober's region, hashed
//	16 session: random for each prober and address, to recognise its responses
//	24 sequence number within the session, from 1
//	32 responses: how long the responder held the request, ns
//	40 responses: arrived, bit i says that request sequence−i arrived
//	48 HMAC-SHA256 of all before and of the responder's region, cut to 16 bytes
//
// The responder's region is in the HMAC but not in the packet. So a packet for one region
// is invalid at another, for example after an address was reassigned. Without a key the
// HMAC uses the empty key, and protects only against such a mix-up.
const (
	packetSize = 64
	macOffset  = 48
	version    = 2

	kindRequest = 1
	kindAnswer  = 2

	// maxSpan is the number of a session's latest requests that a responder remembers.
	maxSpan = 64
)

var magic = [4]byte{'N', 'u', 'P', 'r'}

var (
	// ErrPacket means that the data is not a probe packet of a supported version.
	ErrPacket = errors.New("not a probe packet")
	// ErrKey means that a packet was made with another key, or for another region.
	ErrKey = errors.New("probe packet of another key")
)

// packet is a request or a response.
type packet struct {
	kind           byte
	from           uint64
	session        uint64
	sequence       uint64
	responderDelay time.Duration
	arrivals
}

// arrivals say which requests of a session arrived. Bit i of bits, for i < span, says
// whether the request i numbers before a given request arrived.
type arrivals struct {
	span uint8
	bits uint64
}

// regionID returns the hash that identifies a prober's region in packets.
func regionID(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

// encode encodes the packet, authenticated by the key. responder is the region that
// responds.
func (p packet) encode(key []byte, responder string) []byte {
	b := make([]byte, packetSize, packetSize+sha256.Size)
	copy(b, magic[:])
	b[4], b[5], b[6] = version, p.kind, p.span
	binary.BigEndian.PutUint64(b[8:], p.from)
	binary.BigEndian.PutUint64(b[16:], p.session)
	binary.BigEndian.PutUint64(b[24:], p.sequence)
	binary.BigEndian.PutUint64(b[32:], uint64(max(p.responderDelay, 0)))
	binary.BigEndian.PutUint64(b[40:], p.bits)
	copy(b[macOffset:], mac(key, responder, b[:macOffset]))
	return b
}

// decode decodes and checks a packet. It returns the one of the keys with which the packet
// was made.
func decode(b []byte, keys [][]byte, responder string) (p packet, key []byte, err error) {
	if len(b) != packetSize || [4]byte(b[:4]) != magic || b[4] != version || b[7] != 0 {
		return packet{}, nil, ErrPacket
	}
	p = packet{
		kind:           b[5],
		from:           binary.BigEndian.Uint64(b[8:]),
		session:        binary.BigEndian.Uint64(b[16:]),
		sequence:       binary.BigEndian.Uint64(b[24:]),
		responderDelay: time.Duration(binary.BigEndian.Uint64(b[32:])),
		arrivals:       arrivals{span: b[6], bits: binary.BigEndian.Uint64(b[40:])},
	}
	switch {
	case p.responderDelay < 0 || p.sequence == 0:
		return packet{}, nil, ErrPacket
	case p.kind == kindRequest && p.span == 0 && p.bits == 0 && p.responderDelay == 0:
	case p.kind == kindAnswer && p.span >= 1 && p.span <= maxSpan && p.bits&1 == 1:
	default:
		return packet{}, nil, ErrPacket
	}
	if len(keys) == 0 {
		keys = [][]byte{nil}
	}
	for _, key := range keys {
		if hmac.Equal(b[macOffset:], mac(key, responder, b[:macOffset])) {
			return p, key, nil
		}
	}
	return packet{}, nil, ErrKey
}

// ticketOf reads the ticket from a packet, without checking the packet.
func ticketOf(b []byte) (t ticket, ok bool) {
	if len(b) != packetSize {
		return ticket{}, false
	}
	return ticket{binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint64(b[24:])}, true
}

func mac(key []byte, responder string, text []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(text)
	h.Write([]byte(responder))
	return h.Sum(nil)[:packetSize-macOffset]
}

// signing returns the key for new packets: the first key.
func signing(keys [][]byte) []byte {
	if len(keys) == 0 {
		return nil
	}
	return keys[0]
}

// note records that a request arrived, and returns the arrivals before and including it.
// fresh is false if the request arrived before, or is too old to know. The bits of a are
// relative to highest, the highest sequence so far.
func (a *arrivals) note(highest *uint64, sequence uint64) (around arrivals, fresh bool) {
	if a.span == 0 || sequence > *highest {
		gap := sequence - *highest
		switch {
		case a.span == 0:
			*a = arrivals{span: 1}
		case gap >= maxSpan:
			*a = arrivals{span: maxSpan}
		default:
			a.span, a.bits = uint8(min(uint64(a.span)+gap, maxSpan)), a.bits<<gap
		}
		a.bits |= 1
		*highest = sequence
		return *a, true
	}
	behind := *highest - sequence
	if behind >= uint64(a.span) || a.bits>>behind&1 == 1 {
		return arrivals{}, false
	}
	a.bits |= 1 << behind
	return arrivals{span: a.span - uint8(behind), bits: a.bits >> behind}, true
}

// arrived reports whether the request that is back numbers before the newest arrived.
// known is false if the arrivals do not reach back that far.
func (a arrivals) arrived(back uint64) (arrived, known bool) {
	return back < uint64(a.span) && a.bits>>back&1 == 1, back < uint64(a.span)
}
