// Package voters decides which servers are voters of a region's Raft group: Form says when
// servers form a new group, and Plan says which servers the leader adds and removes.
package voters

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// MaxVoters bounds the voters of a group. More voters would only make commits slower.
const MaxVoters = 9

// Op is the kind of a Change of the Raft configuration.
type Op string

const (
	// Add makes a server a voter, or moves a voter to another address.
	Add Op = "add"
	// Remove removes a server.
	Remove Op = "remove"
)

// Change is one step of a membership plan.
type Change struct {
	Op   Op
	ID   string
	Addr string // only with Add
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

// Peer is what gossip knows about a server.
type Peer struct {
	ID    string
	Addr  string // Raft
	Alive bool
	// Silent is how long the server has been silent; 0 while it is alive.
	Silent time.Duration
	// Cluster is the name of the server's group. It is empty while the server has none.
	Cluster string
	// Bootstrapped is true when the server has Raft state.
	Bootstrapped bool
}

// Foreign reports whether the server has the log of another group.
func (p Peer) Foreign(cluster string) bool { return p.Bootstrapped && p.Cluster != cluster }

// View is everything on which a membership plan depends.
type View struct {
	Self    string
	Cluster string
	// Servers are the voters of the Raft configuration.
	Servers []Server
	// Peers are the servers that gossip knows, including this one.
	Peers []Peer
	// Unseen is how long this server has been the leader. A server that gossip does not
	// list counts as silent for that time.
	Unseen time.Duration
	// ReplaceAfter is how long a server must be silent before a new server may replace it.
	// DeadAfter is how long it must be silent before it is removed without a replacement.
	ReplaceAfter, DeadAfter time.Duration
}

// Plan returns the changes, in order, that make the Raft configuration match the living
// servers. Only a leader may apply them. A silent server is removed before its replacement
// is added. Between the two steps the group tolerates as many failures as it did with the
// dead member.
func Plan(v View) []Change {
	s := newSurvey(v)
	out := s.removals(v)
	for _, x := range v.Servers {
		if p := s.peers[x.ID]; p.Alive && p.Addr != "" && p.Addr != x.Addr {
			out = append(out, Change{Op: Add, ID: x.ID, Addr: p.Addr, Why: "it has another address"})
		}
	}
	for _, id := range s.joiners {
		// While a voter is silent, the group must not come to depend on a new server,
		// because that server may fail to catch up. If a voter has been silent only for a
		// moment, the new server waits too, because it may have to replace that voter.
		if s.count >= MaxVoters || s.undecided(v) || s.count > s.living && s.living < Majority(s.count+1) {
			break
		}
		out = append(out, Change{Op: Add, ID: id, Addr: s.peers[id].Addr, Why: "a new server"})
		s.count++
		s.living++
	}
	return out
}

// survey sorts the servers of a view by their condition.
type survey struct {
	peers map[string]Peer
	// joiners are live servers that are not voters, sorted by ID. dead are silent voters,
	// the longest silent one first.
	joiners, dead []string
	// superseded are voters whose address now belongs to another server.
	superseded map[string]bool
	silent     map[string]time.Duration
	// count is the number of voters. living is the number of live voters.
	count, living int
}

// undecided reports whether a voter is silent, but not long enough to be replaced.
func (s *survey) undecided(v View) bool {
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
				s.superseded[x.ID] = true
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
		if !voters[p.ID] && p.Alive && !p.Foreign(v.Cluster) {
			s.joiners = append(s.joiners, p.ID)
		}
	}
	slices.Sort(s.joiners)
	slices.SortFunc(s.dead, func(a, b string) int {
		return cmp.Or(cmp.Compare(s.silent[b], s.silent[a]), strings.Compare(a, b))
	})
	return s
}

// removals returns the voters to remove. It removes a voter only while the living voters
// can commit the removal, and can still commit after it.
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
			why = "silent, and another server is there to replace it"
			replacements--
		case silent >= v.ReplaceAfter && (s.count+len(s.joiners))%2 == 0:
			// For example, a voter died just before its replacement came. An even group
			// needs one more live server than the odd group without this voter. So the
			// removal never costs a quorum, whichever servers come back.
			why = "silent, and the group is even"
		default:
			continue
		}
		if s.living < Majority(s.count) || s.living < Majority(s.count-1) {
			continue
		}
		out = append(out, Change{Op: Remove, ID: id, Why: why})
		s.count--
	}
	return out
}

// Majority returns how many of n voters are a majority.
func Majority(n int) int { return n/2 + 1 }

// Candidate is what a server knows about another server when a new group forms.
type Candidate struct {
	ID, Addr     string
	Expect       int
	Bootstrapped bool
	// Candidates is the hash of the set of servers with which the candidate would form a
	// group.
	Candidates string
}

// Formation says whether a server without Raft state should form a group.
type Formation struct {
	// Hash is the hash of Servers, for the other servers. It is empty while no set can be
	// named.
	Hash string
	// Servers are the servers of the new group, sorted by ID.
	Servers []Server
	// Ready is true when all of Servers have published the same hash. The server then
	// bootstraps the group.
	Ready bool
	// Why tells operators why the group is not ready.
	Why string
}

// Form returns whether a new group can be formed. seen are the live servers, including
// self. alone is true while no configured address of another server has responded. A server
// bootstraps only if all servers of the set have published the hash of the same set. So two
// overlapping groups cannot form at once.
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
