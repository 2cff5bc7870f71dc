package probe

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPacketsSurviveTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := packet{
			kind:     rapid.SampledFrom([]byte{kindRequest, kindAnswer}).Draw(t, "kind"),
			session:  rapid.Uint64().Draw(t, "session"),
			sequence: rapid.Uint64().Draw(t, "sequence"),
			held:     time.Duration(rapid.Int64Min(0).Draw(t, "held")),
		}
		key := rapid.SampledFrom([][]byte{nil, []byte("key of the region")}).Draw(t, "key")
		b := p.encode(key)
		got, err := decode(b, key)
		if err != nil || got != p {
			t.Fatalf("%+v came back as %+v, %v", p, got, err)
		}
		if key == nil {
			return
		}
		b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if got, err := decode(b, key); err == nil {
			t.Fatalf("a flipped bit went unnoticed: %+v", got)
		}
	})
}

func TestDecodeRefuses(t *testing.T) {
	good := packet{kind: kindRequest, session: 1, sequence: 2}
	future := good.encode(nil)
	future[4] = version + 1
	negative := good.encode(nil)
	negative[24] = 0xff
	for name, tc := range map[string]struct {
		packet, key []byte
		want        error
	}{
		"empty":            {nil, nil, ErrPacket},
		"short":            {good.encode(nil)[:packetSize-1], nil, ErrPacket},
		"long":             {append(good.encode(nil), 0), nil, ErrPacket},
		"not ours":         {make([]byte, packetSize), nil, ErrPacket},
		"another version":  {future, nil, ErrPacket},
		"negative delay":   {negative, nil, ErrPacket},
		"no key for a key": {good.encode(nil), []byte("k"), ErrKey},
		"another key":      {good.encode([]byte("x")), []byte("k"), ErrKey},
	} {
		if _, err := decode(tc.packet, tc.key); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}
