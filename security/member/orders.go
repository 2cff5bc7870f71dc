package member

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/replace"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/rotation"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// The files with the keys of a regional server, in the folder of its identity. Each line has one
// key in base64. The first one is in use.
const (
	GossipKeysFile = "gossip.keys"
	ProbeKeysFile  = "probe.keys"
)

// reportedFile has a text of what the member has reported to its servers.
const reportedFile = "reported"

// Orders are what the federation wants this member to have. A nil *Orders wants nothing. Orders are
// safe for concurrent use.
type Orders struct {
	mu    sync.Mutex
	goal  *nusav1.KeyGoal
	rings func() (gossip, probe []string)
}

// Set sets what the member should have. nil means that nobody has said so.
func (o *Orders) Set(goal *nusav1.KeyGoal) {
	if o == nil || goal == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.goal = goal
}

// Goal returns what the member should have, or nil.
func (o *Orders) Goal() *nusav1.KeyGoal {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.goal
}

// Rings sets the function that returns the names of the keys in use, for a regional server.
func (o *Orders) Rings(f func() (gossip, probe []string)) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rings = f
}

// Has returns what the member has.
func (o *Orders) Has(source *trust.Source) (*rotation.State, error) {
	out, err := enroll.Has(source)
	if err != nil || o == nil {
		return out, err
	}
	o.mu.Lock()
	rings := o.rings
	o.mu.Unlock()
	if rings != nil {
		out.Gossip, out.Probe = rings()
	}
	return out, nil
}

// textOf returns a text of a state, which is the same for equal states.
func textOf(s *rotation.State) string {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(enroll.StateToProto(s))
	if err != nil {
		return ""
	}
	return base64.StdEncoding.EncodeToString(raw)
}

// reported returns the text of what the member has reported to its servers.
func reported(dir string) string {
	text, err := os.ReadFile(filepath.Join(dir, reportedFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// noteReported stores what the member has reported to its servers.
func noteReported(dir string, s *rotation.State) error {
	return replace.File(filepath.Join(dir, reportedFile), []byte(textOf(s)+"\n"))
}

// forgetReported notes that the servers do not know what the member has.
func forgetReported(dir string) error {
	err := os.Remove(filepath.Join(dir, reportedFile))
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// writeRings writes the keys that a server has answered. Without keys the files stay as they are.
func writeRings(dir string, out *nusav1.JoinResponse) error {
	for _, r := range []struct {
		file string
		keys [][]byte
	}{{GossipKeysFile, out.GetGossipKeys()}, {ProbeKeysFile, out.GetProbeKeys()}} {
		if len(r.keys) == 0 {
			continue
		}
		if err := replace.File(filepath.Join(dir, r.file), EncodeKeys(r.keys)); err != nil {
			return err
		}
	}
	return nil
}

// haveKeys reports whether the federation has given keys to the member of a folder.
func haveKeys(dir string) bool {
	for _, file := range []string{GossipKeysFile, ProbeKeysFile} {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			return true
		}
	}
	return false
}

// noKeyLine stands for packets without a key in a file of keys.
const noKeyLine = "none"

// EncodeKeys returns the text of a file of keys.
func EncodeKeys(keys [][]byte) []byte {
	var out strings.Builder
	for _, k := range keys {
		if len(k) == 0 {
			out.WriteString(noKeyLine + "\n")
			continue
		}
		out.WriteString(base64.StdEncoding.EncodeToString(k) + "\n")
	}
	return []byte(out.String())
}

// ReadKeys reads a file of keys. A file that does not exist has none.
func ReadKeys(path string) ([][]byte, error) {
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch line {
		case "":
			continue
		case noKeyLine:
			out = append(out, nil)
			continue
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil {
			return nil, &keysError{path}
		}
		out = append(out, key)
	}
	return out, nil
}

// keysError says that a file of keys is damaged. It never has a part of a key.
type keysError struct{ path string }

func (e *keysError) Error() string {
	return e.path + ": a line is not base64: remove the file, and the next renewal writes it again"
}
