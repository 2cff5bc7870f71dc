package regional

import (
	"errors"
	"os"
	"slices"
	"strings"
)

// maxKnown bounds the file of known gossip addresses.
const maxKnown = 32

// peers remembers the gossip addresses of the region's servers in the data
// directory, so that a restarted server finds its group again by itself even
// when every address it was configured with is its own, or gone.
type peers struct {
	path  string // "" = nowhere, in simulations
	saved []string
}

// readPeers reads what was remembered; a file that cannot be read only costs
// the short way back.
func (s *server) readPeers() {
	if s.dir == nil {
		return
	}
	s.peers.path = s.dir.Path("gossip-peers")
	raw, err := os.ReadFile(s.peers.path)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			s.cfg.Logger.Warn("cannot read the known servers", "path", s.peers.path, "error", err)
		}
		return
	}
	for line := range strings.Lines(string(raw)) {
		if addr := strings.TrimSpace(line); addr != "" && len(s.peers.saved) < maxKnown {
			s.peers.saved = append(s.peers.saved, addr)
		}
	}
}

// savePeers writes the other living servers' addresses when they changed. With
// none left the old ones are kept: it is then that they are needed.
func (s *server) savePeers() {
	if s.peers.path == "" {
		return
	}
	var now []string
	for _, m := range s.gossip.Members() {
		if m.Alive && m.Gossip != s.addrs.Gossip && len(now) < maxKnown {
			now = append(now, m.Gossip)
		}
	}
	slices.Sort(now)
	if len(now) == 0 || slices.Equal(now, s.peers.saved) {
		return
	}
	tmp := s.peers.path + ".new"
	err := os.WriteFile(tmp, []byte(strings.Join(now, "\n")+"\n"), 0o600)
	if err == nil {
		err = os.Rename(tmp, s.peers.path)
	}
	if err != nil {
		s.cfg.Logger.Warn("cannot remember the region's servers", "path", s.peers.path, "error", err)
		return
	}
	s.peers.saved = now
}
