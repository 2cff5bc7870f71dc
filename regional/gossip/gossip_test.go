package gossip

import (
	"errors"
	"strings"
	"testing"
)

// TestLaterServerAtAddressReplacesEarlier: of two servers with one address only the later
// one is alive, whichever of them became known first.
func TestLaterServerAtAddressReplacesEarlier(t *testing.T) {
	old := Member{Meta: Meta{ID: "old", Started: 1}, Gossip: "h:1", Alive: true}
	later := Member{Meta: Meta{ID: "later", Started: 2}, Gossip: "h:1", Alive: true}
	other := Member{Meta: Meta{ID: "other", Started: 3}, Gossip: "h:2", Alive: true}
	silent := later
	silent.Alive = false
	for name, test := range map[string]struct {
		members []Member
		local   Meta
		addr    string
		alive   string
	}{
		"both known":              {[]Member{old, later, other}, Meta{}, "", "later other"},
		"the later one is silent": {[]Member{old, silent, other}, Meta{}, "", "old other"},
		"this server is later":    {[]Member{old, other}, Meta{ID: "me", Started: 9}, "h:1", "me other"},
	} {
		t.Run(name, func(t *testing.T) {
			g := &Group{local: test.local, addr: test.addr, members: map[string]Member{}}
			for _, m := range test.members {
				g.members[m.ID] = m
			}
			var alive []string
			for _, m := range g.Members() {
				if m.Alive {
					alive = append(alive, m.ID)
				}
			}
			if got := strings.Join(alive, " "); got != test.alive {
				t.Errorf("alive are %s, want %s", got, test.alive)
			}
		})
	}
}

func TestMetadataIsBounded(t *testing.T) {
	g := &Group{members: map[string]Member{}}
	fits := Meta{
		ID: strings.Repeat("i", 72), Name: strings.Repeat("n", 63), Cluster: strings.Repeat("c", 36), Candidates: "0123456789abcdef",
		GRPC: "255.255.255.255:65535", Raft: "255.255.255.255:65535", Probe: "255.255.255.255:65535",
		Expect: 9, Bootstrapped: true, Started: 1 << 42, Version: "v1.22.333-rc.4",
	}
	if err := g.SetLocal(fits); err != nil {
		t.Errorf("the longest names do not fit: %v", err)
	}
	fits.Name = strings.Repeat("n", 300)
	if err := g.SetLocal(fits); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too long: %v", err)
	}
}
