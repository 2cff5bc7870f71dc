package gossip

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// The types of memberlist's messages: the first byte after the label.
const (
	pingMsg     = 0
	deadMsg     = 5
	pushPullMsg = 6
	compoundMsg = 7
	encryptMsg  = 10
	nackMsg     = 11
	crcMsg      = 12
	labelMsg    = 244
)

const (
	// maxStream bounds the message of a stream, in bytes. The state of a full group has 50 kB.
	maxStream = 512 << 10
	// maxPushNodes bounds the servers in such a message.
	maxPushNodes = 512
	// versions is the number of versions that a server sends of itself.
	versions = 6
)

// errMessage means that a message is none that a server sends.
var errMessage = errors.New("not a message of gossip")

// readMessage reads the label and the whole message of an incoming stream, which may send slowly.
// Without keys every process may send a stream, and memberlist would fail with some messages. So
// readMessage accepts only messages that a server sends. With keys memberlist decrypts first.
func readMessage(from io.Reader, encrypted bool) ([]byte, error) {
	var all bytes.Buffer
	buffered := bufio.NewReader(from)
	in := io.TeeReader(io.LimitReader(buffered, maxStream), &all)
	kind, err := readKind(in)
	if err != nil {
		return nil, err
	}
	err = readRest(in, kind, encrypted)
	rest, _ := buffered.Peek(buffered.Buffered())
	all.Write(rest)
	return all.Bytes(), err
}

// readRest reads what follows the type of a message.
func readRest(in io.Reader, kind byte, encrypted bool) error {
	switch {
	case kind == encryptMsg && encrypted:
		var size [4]byte
		if _, err := io.ReadFull(in, size[:]); err != nil {
			return err
		}
		n := int64(binary.BigEndian.Uint32(size[:]))
		if n > maxStream {
			return fmt.Errorf("%w: it has %d bytes, at most %d", errMessage, n, maxStream)
		}
		_, err := io.CopyN(io.Discard, in, n)
		return err
	case kind == encryptMsg || encrypted:
		return nil // memberlist tells the sender that only one of the two has keys
	case kind == pingMsg:
		return codec.NewDecoder(in, &codec.MsgpackHandle{}).Decode(new(struct{ SeqNo uint32 }))
	case kind == pushPullMsg:
		return readState(in)
	}
	return fmt.Errorf("%w: its type is %d", errMessage, kind)
}

// readKind reads the label, if there is one, and the type of a message.
func readKind(in io.Reader) (byte, error) {
	var b [1]byte
	if _, err := io.ReadFull(in, b[:]); err != nil || b[0] != labelMsg {
		return b[0], err
	}
	if _, err := io.ReadFull(in, b[:]); err != nil {
		return 0, err
	}
	if _, err := io.CopyN(io.Discard, in, int64(b[0])); err != nil {
		return 0, err
	}
	_, err := io.ReadFull(in, b[:])
	return b[0], err
}

// readState reads the state that a server sends.
func readState(in io.Reader) error {
	dec := codec.NewDecoder(in, &codec.MsgpackHandle{})
	var head struct{ Nodes, UserStateLen int }
	if err := dec.Decode(&head); err != nil {
		return err
	}
	if head.Nodes < 0 || head.Nodes > maxPushNodes || head.UserStateLen != 0 {
		return fmt.Errorf("%w: %d servers and %d further bytes", errMessage, head.Nodes, head.UserStateLen)
	}
	for range head.Nodes {
		var node struct{ Vsn []uint8 }
		if err := dec.Decode(&node); err != nil {
			return err
		}
		if len(node.Vsn) != versions {
			return fmt.Errorf("%w: a server with %d versions", errMessage, len(node.Vsn))
		}
	}
	return nil
}

// plainPacket reports whether a packet has only messages that a server sends without keys. It
// refuses compressed messages, which may become large, and messages of users.
func plainPacket(b []byte) bool {
	if len(b) >= 2 && b[0] == labelMsg {
		b = b[min(len(b), 2+int(b[1])):]
	}
	if len(b) >= 5 && b[0] == crcMsg {
		b = b[5:]
	}
	if len(b) == 0 {
		return false
	}
	if b[0] != compoundMsg {
		return plainKind(b[0])
	}
	// A compound message: the number of parts, their lengths, the parts.
	if len(b) < 2 || len(b) < 2+2*int(b[1]) {
		return false
	}
	lengths, parts := b[2:2+2*int(b[1])], b[2+2*int(b[1]):]
	for ; len(lengths) > 0; lengths = lengths[2:] {
		n := int(binary.BigEndian.Uint16(lengths))
		if n > len(parts) {
			return true // memberlist ignores the rest
		}
		if n > 0 && !plainKind(parts[0]) {
			return false
		}
		parts = parts[n:]
	}
	return true
}

// plainKind reports whether a type is that of a message about servers.
func plainKind(kind byte) bool { return kind <= deadMsg || kind == nackMsg }
