package quorum

import (
	"cmp"
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

// foreign says that the server has the log of another group.
func (p Peer) foreign(cluster string) bool { return p.Bootstrapped && p.Cluster != cluster }

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
	// ReplaceAfter is how long a server is silent before a new one may take
	// its place; DeadAfter before it is removed without one.
	ReplaceAfter, DeadAfter time.Duration
}

// Plan answers which changes bring the Raft configuration in line with the
// servers that are there, in order. Only a leader may carry it out. A silent
// server is removed first and its replacement added then: in between the group
// tolerates no less than it did with a dead member.
func Plan(v View) []Change {
	s := newSurvey(v)
	out := s.removals(v)
	for _, x := range v.Servers {
		if p := s.peers[x.ID]; p.Alive && p.Addr != "" && p.Addr != x.Addr {
			out = append(out, Change{Op: Add, ID: x.ID, Addr: p.Addr, Why: "it has another address"})
		}
	}
	for _, id := range s.joiners {
		// With a silent voter the group must not come to depend on a newcomer
		// that may not catch up; and one that is silent for a moment may have
		// to make room for it.
		if s.count >= MaxVoters || s.unsure(v) || s.count > s.living && s.living < majority(s.count+1) {
			break
		}
		out = append(out, Change{Op: Add, ID: id, Addr: s.peers[id].Addr, Why: "a new server"})
		s.count++
		s.living++
	}
	return out
}

// survey is a view sorted out.
type survey struct {
	peers map[string]Peer
	// joiners are living servers that are no voters, by ID; dead are voters
	// that are silent, the longest first.
	joiners, dead []string
	superseded    map[string]bool
	silent        map[string]time.Duration
	// count of voters, and how many of them live.
	count, living int
}

// unsure says that a voter is silent and not yet long enough to be replaced.
func (s *survey) unsure(v View) bool {
	return slices.ContainsFunc(s.dead, func(id string) bool { return !s.superseded[id] && s.silent[id] < v.ReplaceAfter })
}

func newSurvey(v View) *survey {
	s := &survey{peers: map[string]Peer{}, superseded: map[string]bool{}, silent: map[string]time.Duration{}, count: len(v.Servers)}
	for _, p := range v.Peers {
		s.peers[p.ID] = p
	}
	voters := map[string]bool{}
	for _, x := range v.Servers {
		voters[x.ID] = true
		for _, p := range v.Peers {
			if p.Alive && p.Addr == x.Addr && p.ID != x.ID {
				s.superseded[x.ID] = true // another listens where it did
			}
		}
		p, known := s.peers[x.ID]
		if x.ID == v.Self || p.Alive && !s.superseded[x.ID] {
			s.living++
			continue
		}
		s.silent[x.ID] = p.Silent
		if !known {
			s.silent[x.ID] = v.Unseen
		}
		s.dead = append(s.dead, x.ID)
	}
	for _, p := range v.Peers {
		if !voters[p.ID] && p.Alive && !p.foreign(v.Cluster) {
			s.joiners = append(s.joiners, p.ID)
		}
	}
	slices.Sort(s.joiners)
	slices.SortFunc(s.dead, func(a, b string) int {
		return cmp.Or(cmp.Compare(s.silent[b], s.silent[a]), strings.Compare(a, b))
	})
	return s
}

// removals are the voters to go, as long as the rest can commit that, and can
// commit without them.
func (s *survey) removals(v View) []Change {
	var out []Change
	replacements := len(s.joiners)
	for _, id := range s.dead {
		why := ""
		switch silent := s.silent[id]; {
		case s.superseded[id]:
			why = "another server has its address"
			replacements--
		case silent >= v.DeadAfter:
			why = fmt.Sprintf("silent for %v", silent.Round(time.Second))
		case silent >= v.ReplaceAfter && replacements > 0:
			why = "silent, and another server is there in its place"
			replacements--
		case silent >= v.ReplaceAfter && (s.count+len(s.joiners))%2 == 0:
			// Such as one that died just before its replacement came. An even
			// group needs one living server more than the odd one without it,
			// so this never costs a quorum, whoever comes back.
			why = "silent, and the group is even"
		default:
			continue
		}
		if s.living < majority(s.count) || s.living < majority(s.count-1) {
			continue
		}
		out = append(out, Change{Op: Remove, ID: id, Why: why})
		s.count--
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
