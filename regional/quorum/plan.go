package quorum

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// MaxVoters bounds a group: more servers only make commits slower.
const MaxVoters = 9

// Op is what a Change does to the Raft configuration.
type Op string

const (
	// Add makes a server a voter, or moves a voter to another address.
	Add Op = "add"
	// Remove takes a server out.
	Remove Op = "remove"
)

// Change is one step of a membership plan.
type Change struct {
	Op   Op
	ID   string
	Addr string // of Add
	Why  string
}

func (c Change) String() string {
	if c.Op == Remove {
		return fmt.Sprintf("remove %s: %s", c.ID, c.Why)
	}
	return fmt.Sprintf("add %s at %s: %s", c.ID, c.Addr, c.Why)
}

// Server is a voter of the Raft configuration.
type Server struct{ ID, Addr string }

// Peer is a server as gossip sees it.
type Peer struct {
	ID    string
	Addr  string // Raft
	Alive bool
	// Silent is for how long it has not been alive.
	Silent time.Duration
	// Cluster is the group it belongs to; empty when it has no Raft state yet.
	Cluster string
	// Bootstrapped says that it has Raft state.
	Bootstrapped bool
}

// View is everything that a membership plan depends on.
type View struct {
	Self    string
	Cluster string
	// Servers are the voters of the Raft configuration.
	Servers []Server
	// Peers are the servers that gossip knows, self included.
	Peers []Peer
	// Unseen is how long gossip has said nothing about servers it does not
	// list: the age of this leadership.
	Unseen time.Duration
	// Expect is how many servers the region should have.
	Expect int
	// ReplaceAfter is how long a server is silent before a new one may take
	// its place; DeadAfter before it is removed without one.
	ReplaceAfter, DeadAfter time.Duration
}

// Plan answers which changes bring the Raft configuration in line with the
// servers that are there, in order. Only a leader may carry it out. A silent
// server is removed first and its replacement added then: in between the group
// tolerates no less than it did with a dead member.
func Plan(v View) []Change {
	peers := map[string]Peer{}
	for _, p := range v.Peers {
		peers[p.ID] = p
	}
	voters := map[string]Server{}
	for _, s := range v.Servers {
		voters[s.ID] = s
	}
	superseded := map[string]bool{}
	for _, p := range v.Peers {
		for _, s := range v.Servers {
			if p.Alive && p.Addr == s.Addr && p.ID != s.ID {
				superseded[s.ID] = true // another listens where it did
			}
		}
	}
	alive := func(id string) bool { return id == v.Self || peers[id].Alive && !superseded[id] }
	silent := func(id string) time.Duration {
		if p, known := peers[id]; known {
			return p.Silent
		}
		return v.Unseen
	}

	var joiners, dead []string
	for _, p := range v.Peers {
		if _, voter := voters[p.ID]; !voter && p.Alive && (!p.Bootstrapped || p.Cluster == v.Cluster) {
			joiners = append(joiners, p.ID)
		}
	}
	living := 0
	for _, s := range v.Servers {
		if alive(s.ID) {
			living++
		} else {
			dead = append(dead, s.ID)
		}
	}
	slices.Sort(joiners)
	slices.Sort(dead)
	// The one that has been silent longest goes first.
	slices.SortStableFunc(dead, func(a, b string) int { return int(silent(b) - silent(a)) })

	var out []Change
	count := len(v.Servers)
	replacements := len(joiners)
	for _, id := range dead {
		why := ""
		switch {
		case superseded[id]:
			why = "another server has its address"
			replacements--
		case silent(id) >= v.DeadAfter:
			why = fmt.Sprintf("silent for %v", silent(id).Round(time.Second))
		case silent(id) >= v.ReplaceAfter && (replacements > 0 || count > max(v.Expect, 1)):
			why = "silent, and another server is there in its place"
			replacements--
		default:
			continue
		}
		if living < majority(count) || living < majority(count-1) {
			continue // nothing can be committed, or could be afterwards
		}
		out = append(out, Change{Op: Remove, ID: id, Why: why})
		count--
	}
	for _, s := range v.Servers {
		if p := peers[s.ID]; p.Alive && p.Addr != "" && p.Addr != s.Addr {
			out = append(out, Change{Op: Add, ID: s.ID, Addr: p.Addr, Why: "it has another address"})
		}
	}
	for _, id := range joiners {
		// With a silent voter the group must not come to depend on a newcomer
		// that may not catch up; it is taken in once the silent one is out.
		if count >= MaxVoters || count > living && living < majority(count+1) {
			break
		}
		out = append(out, Change{Op: Add, ID: id, Addr: peers[id].Addr, Why: "a new server"})
		count++
		living++
	}
	return out
}

func majority(n int) int { return n/2 + 1 }

// Candidate is a server as it matters to the formation of a new group.
type Candidate struct {
	ID, Addr     string
	Expect       int
	Bootstrapped bool
	// Candidates is the hash of the set that it would form a group with.
	Candidates string
}

// Formation is what a server without Raft state should do.
type Formation struct {
	// Hash of Servers, to be told to the others; empty when too few are seen.
	Hash string
	// Servers of the group, sorted by ID.
	Servers []Server
	// Ready: every one of Servers has told the same hash. Bootstrap with them.
	Ready bool
	// Why not, for people.
	Why string
}

// Form answers whether a new group can be formed. seen are the living servers,
// self included; alone says that other addresses are configured and none has
// answered yet. Only when every server of the set names the same set does any
// of them bootstrap, so that two overlapping groups cannot come up at once.
func Form(self string, seen []Candidate, expect int, alone bool) Formation {
	seen = slices.Clone(seen)
	slices.SortFunc(seen, func(a, b Candidate) int { return strings.Compare(a.ID, b.ID) })
	for _, c := range seen {
		if c.Bootstrapped {
			return Formation{Why: fmt.Sprintf("%s belongs to a group: waiting to be added to it", c.ID)}
		}
		if c.Expect != expect {
			return Formation{Why: fmt.Sprintf("%s expects %d servers, this one %d: make bootstrap_expect equal", c.ID, c.Expect, expect)}
		}
	}
	if len(seen) < expect || alone {
		return Formation{Why: fmt.Sprintf("%d of %d expected servers seen", len(seen), expect)}
	}
	set := seen[:expect]
	f := Formation{Ready: true}
	sum := sha256.New()
	member := false
	for _, c := range set {
		f.Servers = append(f.Servers, Server{ID: c.ID, Addr: c.Addr})
		fmt.Fprintf(sum, "%s %s\n", c.ID, c.Addr)
		member = member || c.ID == self
	}
	f.Hash = hex.EncodeToString(sum.Sum(nil)[:8])
	for _, c := range set {
		if c.ID != self && c.Candidates != f.Hash {
			f.Ready, f.Why = false, fmt.Sprintf("%s does not name the same servers yet", c.ID)
		}
	}
	if !member {
		return Formation{Why: "enough others form the group: waiting to be added to it"}
	}
	return f
}
