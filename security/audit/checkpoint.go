package audit

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Checkpoint says which entries a trail has: Root is the root of the tree of its first
// Size entries.
type Checkpoint struct {
	// Trail is the name of the trail and of its key.
	Trail string
	Size  int64
	Root  Hash
}

// GlobalTrail returns the name of the global tier's trail.
func GlobalTrail(federation string) string { return "nusa/" + federation + "/global" }

// RegionTrail returns the name of a region's trail. A region that is set up again under the same
// name is another cluster and has another trail.
func RegionTrail(region, cluster string) string { return "nusa/" + cluster + "/region/" + region }

// GenerateKey returns a new key for the checkpoints of a trail: the secret signer, and the verifier,
// which is public.
func GenerateKey(random io.Reader, trail string) (signer, verifier string, err error) {
	return note.GenerateKey(random, trail)
}

// text is what is signed: name, size and root of the trail, each on a line.
func (c Checkpoint) text() string { return fmt.Sprintf("%s\n%d\n%s\n", c.Trail, c.Size, c.Root) }

// Sign returns the signed checkpoint of a tree. The name of the trail is that of the key.
func Sign(signer string, t Tree) (string, error) {
	s, err := note.NewSigner(signer)
	if err != nil {
		return "", fmt.Errorf("the key of the audit trail: %w", err)
	}
	signed, err := note.Sign(&note.Note{Text: Checkpoint{s.Name(), t.Size, t.Root()}.text()}, s)
	return string(signed), err
}

// ErrKey says that a text is not the public key of a trail.
var ErrKey = errors.New("is not the public key of an audit trail, which `nusa audit verify` shows")

// KeyName returns the name of the trail that a public key belongs to.
func KeyName(verifier string) (string, error) {
	v, err := note.NewVerifier(verifier)
	if err != nil {
		return "", fmt.Errorf("%.80q %w", verifier, ErrKey)
	}
	return v.Name(), nil
}

// maxSigned bounds a signed checkpoint in bytes.
const maxSigned = 16 << 10

// Open checks the signature of a checkpoint, and returns the checkpoint.
func Open(signed, verifier string) (Checkpoint, error) {
	v, err := note.NewVerifier(verifier)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("%.80q %w", verifier, ErrKey)
	}
	if len(signed) > maxSigned {
		return Checkpoint{}, fmt.Errorf("the checkpoint has %d bytes, more than %d", len(signed), maxSigned)
	}
	n, err := note.Open([]byte(signed), note.VerifierList(v))
	if err != nil {
		return Checkpoint{}, fmt.Errorf("the checkpoint is not signed with the key of %s: %w", v.Name(), err)
	}
	c, err := parseCheckpoint(n.Text)
	if err == nil && c.Trail != v.Name() {
		err = fmt.Errorf("it is signed with the key of %s", v.Name())
	}
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint %.200q: %w", n.Text, err)
	}
	return c, nil
}

func parseCheckpoint(text string) (Checkpoint, error) {
	lines := strings.SplitN(text, "\n", 4)
	if len(lines) < 4 {
		return Checkpoint{}, errors.New("name, size and root are missing")
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil || size < 0 {
		return Checkpoint{}, fmt.Errorf("%.40q is not a size", lines[1])
	}
	root, err := tlog.ParseHash(lines[2])
	if err != nil {
		return Checkpoint{}, fmt.Errorf("%.80q is not a root", lines[2])
	}
	return Checkpoint{lines[0], size, root}, nil
}
