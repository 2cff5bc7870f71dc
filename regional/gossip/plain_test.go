package gossip

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// pushed encodes a message of a server's state.
func pushed(t testing.TB, nodes, user int, versions ...uint8) []byte {
	b := bytes.NewBuffer([]byte{labelMsg, 6, 'n', 'u', 's', 'a', '/', 'a', pushPullMsg})
	enc := codec.NewEncoder(b, &codec.MsgpackHandle{})
	if err := enc.Encode(map[string]any{"Nodes": nodes, "UserStateLen": user, "Join": true}); err != nil {
		t.Fatal(err)
	}
	for range min(nodes, 3) {
		if err := enc.Encode(map[string]any{"Name": "s1", "Addr": []byte{127, 0, 0, 1}, "Port": 7612, "Vsn": versions}); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// TestPlainStreams: without keys only messages that a server sends reach memberlist, which would
// fail with others.
func TestPlainStreams(t *testing.T) {
	sealed := func(n uint32) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{encryptMsg}, n), make([]byte, 20)...)
	}
	good := pushed(t, 2, 0, 1, 5, 5, 0, 0, 0)
	for name, c := range map[string]struct {
		text      []byte
		encrypted bool
		want      error
	}{
		"a state":                           {good, false, nil},
		"a state and more":                  {append(bytes.Clone(good), "more"...), false, nil},
		"a server with one version":         {pushed(t, 1, 0, 1), false, errMessage},
		"a server without versions":         {pushed(t, 1, 0), false, errMessage},
		"a million servers":                 {pushed(t, 1<<20, 0, 1, 5, 5, 0, 0, 0), false, errMessage},
		"fewer than no servers":             {pushed(t, -1, 0), false, errMessage},
		"a large state of the user":         {pushed(t, 1, 19<<20, 1, 5, 5, 0, 0, 0), false, errMessage},
		"half a state":                      {good[:len(good)-9], false, io.EOF},
		"a message of the user":             {append([]byte{8}, good[9:]...), false, errMessage},
		"a compressed message":              {[]byte{9, 0x80}, false, errMessage},
		"nothing":                           {nil, false, io.EOF},
		"encrypted, and no keys":            {sealed(20), false, nil},
		"encrypted":                         {sealed(20), true, nil},
		"encrypted, and half of it":         {sealed(21), true, io.EOF},
		"encrypted, and much too long":      {sealed(20 << 20), true, errMessage},
		"not encrypted, and there are keys": {good, true, nil},
	} {
		got, err := readMessage(bytes.NewReader(c.text), c.encrypted)
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err == nil && !bytes.Equal(got, c.text) {
			t.Errorf("%s: %d bytes reach memberlist, want %d", name, len(got), len(c.text))
		}
	}
}

func TestPlainPackets(t *testing.T) {
	label := []byte{labelMsg, 6, 'n', 'u', 's', 'a', '/', 'a'}
	with := func(b ...byte) []byte { return append(bytes.Clone(label), b...) }
	for name, c := range map[string]struct {
		packet []byte
		want   bool
	}{
		"a ping":                             {with(pingMsg, 1), true},
		"a ping without a label":             {[]byte{pingMsg, 1}, true},
		"a ping with a sum":                  {with(crcMsg, 0, 0, 0, 0, pingMsg, 1), true},
		"nothing":                            {nil, false},
		"a label alone":                      {label, false},
		"a label without an end":             {[]byte{labelMsg, 200, 'x'}, false},
		"compressed":                         {with(9, 1), false},
		"of the user":                        {with(8, 1), false},
		"several":                            {with(compoundMsg, 2, 0, 2, 0, 1, 4, 1, 0), true},
		"several, one of them compressed":    {with(compoundMsg, 2, 0, 2, 0, 1, 4, 1, 9), false},
		"several in several":                 {with(compoundMsg, 1, 0, 2, compoundMsg, 0), false},
		"several, and their lengths are cut": {with(compoundMsg, 200, 0), false},
		"several, and the last is cut":       {with(compoundMsg, 1, 9, 9, 4), true},
	} {
		if got := plainPacket(c.packet); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// FuzzMessages: no bytes of a stream or a packet make the checks fail, or accept more than maxStream.
func FuzzMessages(f *testing.F) {
	f.Add(pushed(f, 2, 0, 1, 5, 5, 0, 0, 0), false)
	f.Add([]byte{compoundMsg, 2, 0, 1}, true)
	f.Fuzz(func(t *testing.T, b []byte, encrypted bool) {
		plainPacket(b)
		got, err := readMessage(bytes.NewReader(b), encrypted)
		if err == nil && !bytes.HasPrefix(b, got) {
			t.Errorf("%d of %d bytes", len(got), len(b))
		}
	})
}

// TestMeanings: the log says what memberlist's texts mean.
func TestMeanings(t *testing.T) {
	for text, want := range map[string]string{
		"failed to receive: encryption is configured but remote state is not encrypted from=127.0.0.1:1": "the sender does not encrypt",
		"Decrypt packet failed: no installed keys could decrypt the message from=127.0.0.1:1":            "none of the keys",
		"remote error: remote state is encrypted and encryption is not configured":                       "this server has no key",
		"Failed to read remote state: EOF":                                                               "",
	} {
		if got := meaning(text); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
