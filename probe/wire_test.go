package probe

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPacketsSurviveTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := packet{
			kind:     kindRequest,
			from:     rapid.Uint64().Draw(t, "from"),
			session:  rapid.Uint64().Draw(t, "session"),
			sequence: rapid.Uint64Min(1).Draw(t, "sequence"),
		}
		if rapid.Bool().Draw(t, "answer") {
			p.kind, p.responderDelay = kindAnswer, time.Duration(rapid.Int64Min(0).Draw(t, "held"))
			p.arrivals = arrivals{span: rapid.Uint8Range(1, maxSpan).Draw(t, "span"), bits: rapid.Uint64().Draw(t, "bits") | 1}
		}
		keys := rapid.SampledFrom([][][]byte{nil, {[]byte("key of the region")}}).Draw(t, "keys")
		b := p.encode(signing(keys), "b")
		got, key, err := decode(b, keys, "b")
		if err != nil || got != p || !bytes.Equal(key, signing(keys)) {
			t.Fatalf("%+v came back as %+v, %v", p, got, err)
		}
		b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if got, _, err := decode(b, keys, "b"); err == nil {
			t.Fatalf("a flipped bit went unnoticed: %+v", got)
		}
	})
}

func TestDecodeRefuses(t *testing.T) {
	good := packet{kind: kindRequest, session: 1, sequence: 2}
	plain := good.encode(nil, "b")
	answer := good.answer()
	with := func(p packet, at int, value byte) []byte {
		b := p.encode(nil, "b")
		b[at] = value
		copy(b[macOffset:], mac(nil, "b", b[:macOffset]))
		return b
	}
	k := [][]byte{[]byte("k"), []byte("l")}
	for name, tc := range map[string]struct {
		packet []byte
		keys   [][]byte
		want   error
	}{
		"right":                     {plain, nil, nil},
		"right answer":              {answer.encode(nil, "b"), nil, nil},
		"second key":                {good.encode(k[1], "b"), k, nil},
		"empty":                     {nil, nil, ErrPacket},
		"short":                     {plain[:packetSize-1], nil, ErrPacket},
		"long":                      {append(bytes.Clone(plain), 0), nil, ErrPacket},
		"not ours":                  {make([]byte, packetSize), nil, ErrPacket},
		"another version":           {with(good, 4, version+1), nil, ErrPacket},
		"another kind":              {with(good, 5, 3), nil, ErrPacket},
		"something where zero is":   {with(good, 7, 1), nil, ErrPacket},
		"no sequence number":        {packet{kind: kindRequest}.encode(nil, "b"), nil, ErrPacket},
		"negative delay":            {with(answer, 32, 0xff), nil, ErrPacket},
		"a request that was held":   {with(good, 39, 1), nil, ErrPacket},
		"a request with a span":     {with(good, 6, 1), nil, ErrPacket},
		"an answer without a span":  {with(answer, 6, 0), nil, ErrPacket},
		"a span beyond the bits":    {with(answer, 6, 65), nil, ErrPacket},
		"an answer to what is lost": {with(answer, 47, 0), nil, ErrPacket},
		"no key for a key":          {plain, k, ErrKey},
		"a key for no key":          {good.encode(k[0], "b"), nil, ErrKey},
		"another key":               {good.encode([]byte("x"), "b"), k, ErrKey},
		"for another region":        {good.encode(k[0], "c"), k, ErrKey},
	} {
		if _, _, err := decode(tc.packet, tc.keys, "b"); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

// The arrivals that a response reports, compared with a plain list.
func TestArrivalsAgainstAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s session
		came := map[uint64]bool{}
		first, highest := uint64(0), uint64(0)
		for _, sequence := range rapid.SliceOfN(rapid.Uint64Range(1, 200), 1, 150).Draw(t, "sequences") {
			got, fresh := s.note(&s.highest, sequence)
			if first == 0 {
				first = sequence
			}
			// The last 64 up to the highest are remembered, from the first on.
			remembered := sequence > highest || highest-sequence < maxSpan && sequence >= first
			if fresh != (remembered && !came[sequence]) {
				t.Fatalf("%d after %v (highest %d): fresh is %v", sequence, came, highest, fresh)
			}
			if !fresh {
				continue
			}
			came[sequence], highest = true, max(highest, sequence)
			for back := range sequence {
				did, known := got.arrived(back)
				if want := sequence-back >= first && highest-(sequence-back) < maxSpan; known != want {
					t.Fatalf("%d back from %d (first %d, highest %d): known is %v", back, sequence, first, highest, known)
				}
				if known && did != came[sequence-back] {
					t.Fatalf("%d back from %d: arrived is %v", back, sequence, did)
				}
			}
		}
	})
}

// FuzzPacket: responder and prober survive any packet; a packet that decodes
// encodes to the same bytes; no response is longer than its request.
func FuzzPacket(f *testing.F) {
	good := packet{kind: kindRequest, from: 9, session: 1, sequence: 2}
	f.Add(good.encode(nil, "b"), false)
	f.Add(good.answer().encode(nil, "b"), true)
	f.Add([]byte{}, true)
	f.Add(bytes.Repeat([]byte{0xff}, 2*packetSize), true)
	f.Fuzz(func(t *testing.T, b []byte, sign bool) {
		if sign && len(b) == packetSize { // to get past the HMAC
			copy(b, magic[:])
			b[4] = version
			copy(b[macOffset:], mac(nil, "b", b[:macOffset]))
		}
		p, _, err := decode(b, nil, "b")
		if err == nil && !bytes.Equal(p.encode(nil, "b"), b) {
			t.Fatalf("%x is read as %+v, which is written as %x", b, p, p.encode(nil, "b"))
		}
		r := &Responder{cfg: ResponderConfig{Region: "b", Logger: quiet}, limits: newLimits(1, 1),
			sessions: newExpiringTable[sessionKey, *session](2, time.Second), lastSeen: newExpiringTable[uint64, time.Time](2, time.Second)}
		from := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
		if reply := r.reply(b, from, epoch); len(reply) > len(b) || reply != nil && err != nil {
			t.Fatalf("%d bytes of response to %d, %v", len(reply), len(b), err)
		}
		prober := testProber(t)
		prober.SetPeers([]Peer{{Name: "b", Addresses: []string{"10.0.0.2:7613"}}})
		o := prober.begin("b", "10.0.0.2:7613", UDP)
		if err == nil && sign { // turn the packet into a response of the session in flight
			p.session, p.sequence, p.from = o.session, o.sequence, prober.id
			b = p.encode(nil, "b")
		}
		_ = prober.receiveAnswer(b, o.sent.Add(time.Millisecond), time.Hour)
		for _, e := range prober.Edges() {
			checkEdge(t, e)
		}
	})
}
