package voters_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/regional/voters"
)

const (
	replaceAfter = 5 * time.Second
	deadAfter    = time.Hour
)

func view(servers string, peers ...voters.Peer) voters.View {
	v := voters.View{Self: "a", Cluster: "C", Unseen: time.Minute, ReplaceAfter: replaceAfter, DeadAfter: deadAfter, Peers: peers}
	for _, id := range strings.Fields(servers) {
		v.Servers = append(v.Servers, voters.Server{ID: id, Addr: id + ":1"})
	}
	return v
}

func member(id string) voters.Peer {
	return voters.Peer{ID: id, Addr: id + ":1", Alive: true, Cluster: "C", Bootstrapped: true}
}

func fresh(id string) voters.Peer { return voters.Peer{ID: id, Addr: id + ":1", Alive: true} }

func silent(id string, d time.Duration) voters.Peer {
	p := member(id)
	p.Alive, p.Silent = false, d
	return p
}

func TestPlan(t *testing.T) {
	stranger := member("x")
	stranger.Cluster = "other"
	again := fresh("d")
	again.Addr = "c:1"
	moved := member("b")
	moved.Addr = "b:2"
	for _, test := range []struct {
		name string
		view voters.View
		want string
	}{
		{"nothing to do", view("a b c", member("a"), member("b"), member("c")), ""},
		{"a new server joins", view("a", member("a"), fresh("b")), "add b at b:1: a new server"},
		{"two join, in order", view("a", member("a"), fresh("c"), fresh("b")),
			"add b at b:1: a new server; add c at c:1: a new server"},
		{"a removed server that came back joins again", view("a b", member("a"), member("b"), member("c")),
			"add c at c:1: a new server"},
		{"a server of another cluster never joins", view("a b", member("a"), member("b"), stranger), ""},
		{"a dead server without a replacement stays", view("a b c", member("a"), member("b"), silent("c", time.Minute)), ""},
		{"a dead server is replaced", view("a b c", member("a"), member("b"), silent("c", time.Minute), fresh("d")),
			"remove c: silent, and another server is there to replace it; add d at d:1: a new server"},
		{"a server silent for a moment is not replaced, and no server joins",
			view("a b c", member("a"), member("b"), silent("c", time.Second), fresh("d")), ""},
		{"one new server replaces one dead server, the longest silent", view("a b c d e", member("a"), member("b"), member("c"),
			silent("d", time.Minute), silent("e", 2*time.Minute), fresh("f")),
			"remove e: silent, and another server is there to replace it; add f at f:1: a new server"},
		{"a dead server is removed from an even group", view("a b c d", member("a"), member("b"), member("c"), silent("d", time.Minute)),
			"remove d: silent, and the group is even"},
		{"a new server waits while a voter is silent for less than ReplaceAfter", view("a b c d e", member("a"), member("b"), member("c"), member("d"), silent("e", time.Second), fresh("f")), ""},
		{"a server dead for long is removed without a replacement", view("a b c", member("a"), member("b"), silent("c", 2*time.Hour)),
			"remove c: silent for 2h0m0s"},
		{"never without a quorum", view("a b c", member("a"), silent("b", 2*time.Hour), silent("c", 2*time.Hour), fresh("d"), fresh("e")),
			""},
		{"a server that gossip never saw is silent since the election", view("a b c", member("a"), member("b"), fresh("d")),
			"remove c: silent, and another server is there to replace it; add d at d:1: a new server"},
		{"a server whose address another server has is removed at once", view("a b c", member("a"), member("b"), silent("c", 0), again),
			"remove c: another server has its address; add d at c:1: a new server"},
		{"also before gossip has noticed its silence", view("a b c", member("a"), member("b"), member("c"), again),
			"remove c: another server has its address; add d at c:1: a new server"},
		{"another address", view("a b", member("a"), moved), "add b at b:2: it has another address"},
		{"not more than the limit", view("a b c d e f g h i", member("a"), member("b"), member("c"), member("d"),
			member("e"), member("f"), member("g"), member("h"), member("i"), fresh("j")), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, c := range voters.Plan(test.view) {
				got = append(got, c.String())
			}
			if s := strings.Join(got, "; "); s != test.want {
				t.Errorf("plan is\n  %s\nwant\n  %s", s, test.want)
			}
		})
	}
}

// TestPlanKeepsQuorum: if the live voters are a majority before a plan, they are a majority
// after every step of the plan. The leader stays a voter.
func TestPlanKeepsQuorum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "group")
		v := view("")
		alive := map[string]bool{"a": true}
		for i := range n {
			id := string(rune('a' + i))
			v.Servers = append(v.Servers, voters.Server{ID: id, Addr: id + ":1"})
			p := member(id)
			if i > 0 && rapid.Bool().Draw(t, "dead") {
				p = silent(id, time.Duration(rapid.IntRange(0, 7200).Draw(t, "silent"))*time.Second)
			}
			alive[id] = p.Alive
			v.Peers = append(v.Peers, p)
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "new") {
			v.Peers = append(v.Peers, fresh(fmt.Sprintf("n%d", i)))
		}
		count := func(ids map[string]bool) (living int) {
			for id := range ids {
				if alive[id] {
					living++
				}
			}
			return living
		}
		group := map[string]bool{}
		for _, s := range v.Servers {
			group[s.ID] = true
		}
		before := count(group) > len(group)/2
		for _, c := range voters.Plan(v) {
			if c.Op == voters.Remove {
				if alive[c.ID] {
					t.Fatalf("%v removes a live server", c)
				}
				delete(group, c.ID)
			} else {
				group[c.ID], alive[c.ID] = true, true
			}
			if before && count(group) <= len(group)/2 {
				t.Fatalf("after %v only %d of %d voters live", c, count(group), len(group))
			}
		}
		if len(group) > voters.MaxVoters {
			t.Fatalf("%d voters", len(group))
		}
	})
}

func TestForm(t *testing.T) {
	c := func(id string, expect int) voters.Candidate {
		return voters.Candidate{ID: id, Addr: id + ":1", Expect: expect}
	}
	three := []voters.Candidate{c("a", 3), c("b", 3), c("c", 3)}
	hash := voters.Form("a", three, 3, false).Hash
	agreed := func(ids ...string) []voters.Candidate {
		out := append([]voters.Candidate(nil), three...)
		for i := range out {
			for _, id := range ids {
				if out[i].ID == id {
					out[i].Candidates = hash
				}
			}
		}
		return out
	}
	grown := append(agreed("a", "b", "c"), c("d", 3))
	belongs := c("b", 3)
	belongs.Bootstrapped = true
	for _, test := range []struct {
		name  string
		self  string
		seen  []voters.Candidate
		want  int
		alone bool
		ready bool
		why   string
	}{
		{"too few", "a", three[:2], 3, false, false, "2 of 3 expected servers seen"},
		{"one is enough for itself", "a", []voters.Candidate{c("a", 1)}, 1, false, true, ""},
		{"but not before others have responded", "a", []voters.Candidate{c("a", 1)}, 1, true, false, "1 of 1 expected servers seen"},
		{"not before all name the same", "a", agreed("b"), 3, false, false, "c does not name the same servers yet"},
		{"all agree", "b", agreed("a", "b", "c"), 3, false, true, ""},
		{"its own hash does not matter", "a", agreed("b", "c"), 3, false, true, ""},
		{"the first ones of too many", "a", grown, 3, false, true, ""},
		{"the rest wait", "d", grown, 3, false, false, "enough others form the group: waiting to be added to it"},
		{"never beside an existing group", "a", []voters.Candidate{c("a", 3), belongs, c("c", 3)}, 3, false, false, "b belongs to a group: waiting to be added to it"},
		{"never with different expectations", "a", []voters.Candidate{c("a", 3), c("b", 5), c("c", 3)}, 3, false, false, "b expects 5 servers, this one 3: make bootstrap_expect equal"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := voters.Form(test.self, test.seen, test.want, test.alone)
			if f.Ready != test.ready || f.Why != test.why {
				t.Errorf("ready %v, why %q; want %v, %q", f.Ready, f.Why, test.ready, test.why)
			}
			if f.Ready && len(f.Servers) != test.want {
				t.Errorf("group of %d, want %d", len(f.Servers), test.want)
			}
		})
	}
}
