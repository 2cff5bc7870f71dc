package regional

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/regional/gossip"
)

// maxKnownServers bounds the file of gossip addresses.
const maxKnownServers = 32

// knownServers stores the gossip addresses of the region's servers in the data
// directory. A restarted server then finds its group even if every address in its
// configuration is its own or out of use.
type knownServers struct {
	path  string // empty in simulations: nothing is stored
	saved []string
}

// readKnownServers reads the file. After an error, which it logs, the server uses only the
// configured addresses.
func readKnownServers(dir *serve.DataDir, log *slog.Logger) *knownServers {
	k := &knownServers{}
	if dir == nil {
		return k
	}
	k.path = dir.Path("gossip-peers")
	raw, err := os.ReadFile(k.path)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			log.Warn("cannot read the known servers", "path", k.path, "error", err)
		}
		return k
	}
	for line := range strings.Lines(string(raw)) {
		if addr := strings.TrimSpace(line); addr != "" && len(k.saved) < maxKnownServers {
			k.saved = append(k.saved, addr)
		}
	}
	return k
}

// save writes the addresses of the other living servers when they have changed. When no
// other server lives, save keeps the old file, because this server needs it to find the
// others again.
func (k *knownServers) save(members []gossip.Member, own string) error {
	if k.path == "" {
		return nil
	}
	var now []string
	for _, m := range members {
		if m.Alive && m.Gossip != own && len(now) < maxKnownServers {
			now = append(now, m.Gossip)
		}
	}
	slices.Sort(now)
	if len(now) == 0 || slices.Equal(now, k.saved) {
		return nil
	}
	tmp := k.path + ".new"
	err := os.WriteFile(tmp, []byte(strings.Join(now, "\n")+"\n"), 0o600)
	if err == nil {
		err = os.Rename(tmp, k.path)
	}
	if err == nil {
		k.saved = now
	}
	return err
}
