package probe

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"
)

// A probe packet is the same size both ways, so that a responder cannot be
// used to amplify:
//
//	0  magic "NuPr"
//	4  version
//	5  kind
//	6  zero
//	8  session: random per prober, tells its answers from others'
//	16 sequence number
//	24 answers: how long the responder held it, ns
//	32 HMAC-SHA256 of all before, cut to 16 bytes; zero without a key
const (
	packetSize = 48
	macOffset  = 32
	version    = 1

	kindRequest = 1
	kindAnswer  = 2
)

var magic = [4]byte{'N', 'u', 'P', 'r'}

var (
	// ErrPacket: not a probe packet of a version that we speak.
	ErrPacket = errors.New("not a probe packet")
	// ErrKey: the packet was not made with our key.
	ErrKey = errors.New("probe packet of another key")
)

type packet struct {
	kind     byte
	session  uint64
	sequence uint64
	held     time.Duration
}

func (p packet) encode(key []byte) []byte {
	b := make([]byte, packetSize)
	copy(b, magic[:])
	b[4], b[5] = version, p.kind
	binary.BigEndian.PutUint64(b[8:], p.session)
	binary.BigEndian.PutUint64(b[16:], p.sequence)
	binary.BigEndian.PutUint64(b[24:], uint64(max(p.held, 0)))
	if key != nil {
		copy(b[macOffset:], mac(key, b[:macOffset]))
	}
	return b
}

func decode(b, key []byte) (packet, error) {
	if len(b) != packetSize || [4]byte(b[:4]) != magic || b[4] != version {
		return packet{}, ErrPacket
	}
	if key != nil && !hmac.Equal(b[macOffset:], mac(key, b[:macOffset])) {
		return packet{}, ErrKey
	}
	p := packet{
		kind:     b[5],
		session:  binary.BigEndian.Uint64(b[8:]),
		sequence: binary.BigEndian.Uint64(b[16:]),
		held:     time.Duration(binary.BigEndian.Uint64(b[24:])),
	}
	if p.held < 0 {
		return packet{}, ErrPacket
	}
	return p, nil
}

func mac(key, text []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(text)
	return h.Sum(nil)[:packetSize-macOffset]
}
