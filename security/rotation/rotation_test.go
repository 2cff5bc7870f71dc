package rotation_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/security/rotation"
)

// TestEtcdLacks: an etcd that trusts none of the roots of a change holds back the next step, because no
// root that it trusts vouches for the later one. One that trusts too much does not.
func TestEtcdLacks(t *testing.T) {
	for _, c := range []struct {
		name      string
		want, has string
		lacks     string
		note      bool
	}{
		{"no etcd", "A B", "", "", true},
		{"not asked", "", "A", "", true},
		{"at the begin", "A B", "A", "", true},
		{"after the change", "B", "A", "trusts root A until", true},
		{"after the change, started in the middle", "B", "A B", "trusts root A until", true},
		{"the next change, not restarted", "B C", "A", "trusts root A until", false},
		{"the next change, started in the middle of the one before", "B C", "A B", "trusts root A until", true},
	} {
		lacks, note := rotation.EtcdLacks(strings.Fields(c.want), strings.Fields(c.has))
		if !strings.Contains(lacks, c.lacks) || (lacks == "") != (c.lacks == "") || note != c.note {
			t.Errorf("%s: %q, note %v", c.name, lacks, note)
		}
	}
}

// TestSteps: each phase allows its steps only, and refuses those for which a member is not ready.
func TestSteps(t *testing.T) {
	none := &rotation.Waiting{}
	late := &rotation.Waiting{Members: 7, Some: []string{"region/a/agent/n1 (still trusts root x)", "b", "c", "d", "e", "f"}}
	silent := &rotation.Waiting{Silent: []string{"jakarta"}}
	steady := rotation.Authority{Issuer: "A"}
	trust := rotation.Authority{Version: 1, Phase: rotation.Trust, Issuer: "A", Other: "B"}
	issue := rotation.Authority{Version: 2, Phase: rotation.Issue, Issuer: "B", Other: "A"}
	for _, c := range []struct {
		name    string
		from    rotation.Authority
		step    string
		waiting *rotation.Waiting
		force   bool
		want    string // "issuer other phase", or a part of the error
	}{
		{"begin", steady, "trust", late, false, "A B trust"},
		{"begin in the middle", steady, "issue", none, false, "the phase is steady, so the next step is trust"},
		{"nothing to take back", steady, "rollback", none, false, "the next step is trust"},
		{"issue", trust, "issue", none, false, "B A issue"},
		{"issue with a late member", trust, "issue", late, false, "7 members: region/a/agent/n1 (still trusts root x), b, c, d, e, …"},
		{"issue with a silent region", trust, "issue", silent, false, "regions that did not answer: jakarta"},
		{"issue by force", trust, "issue", late, true, "B A issue"},
		{"trust twice", trust, "trust", none, false, "the next step is issue or rollback"},
		{"distrust too early", trust, "distrust", none, true, "the next step is issue or rollback"},
		{"back from trust", trust, "rollback", none, false, "A  "},
		{"back from trust with a late member", trust, "rollback", late, false, "would separate them"},
		{"distrust", issue, "distrust", none, false, "B  "},
		{"distrust with a late member", issue, "distrust", late, false, "would separate them"},
		{"distrust by force", issue, "distrust", silent, true, "B  "},
		{"back from issue", issue, "rollback", late, false, "A B trust"},
		{"another word", issue, "remove", none, true, `not "remove"`},
	} {
		got, err := c.from.Step(c.step, "B", c.waiting, c.force)
		text := fmt.Sprintf("%s %s %s", got.Issuer, got.Other, got.Phase)
		if err != nil {
			text = err.Error()
			if got != c.from {
				t.Errorf("%s: a refused step changes %v to %v", c.name, c.from, got)
			}
		} else if got.Version != c.from.Version+1 {
			t.Errorf("%s: version %d after %d", c.name, got.Version, c.from.Version)
		}
		if err == nil && text != c.want || err != nil && !strings.Contains(text, c.want) {
			t.Errorf("%s: %s, want %s", c.name, text, c.want)
		}
	}
	if _, err := steady.Step("trust", "A", none, false); !errors.Is(err, rotation.ErrStep) {
		t.Errorf("the present root as the next one: %v", err)
	}
}

// TestLacks: a member lacks what differs from the goal, and only that.
func TestLacks(t *testing.T) {
	goal := rotation.State{Roots: []string{"A", "B"}, Issuer: "B", Gossip: []string{"k1", "k2"}}
	for _, c := range []struct {
		has  rotation.State
		want string
	}{
		{rotation.State{Roots: []string{"B", "A"}, Issuer: "B", Authority: "B", Gossip: []string{"k1", "k2"}, Probe: []string{"p"}}, ""},
		{rotation.State{Roots: []string{"A", "B"}, Issuer: "A", Gossip: []string{"k1", "k2"}}, "has a certificate of root A"},
		{rotation.State{Roots: []string{"A"}, Issuer: "B", Gossip: []string{"k1", "k2"}}, "does not trust root B"},
		{rotation.State{Roots: []string{"A", "B", "C"}, Issuer: "B", Gossip: []string{"k1", "k2"}}, "still trusts root C"},
		{rotation.State{Roots: []string{"A", "B"}, Issuer: "B", Authority: "A", Gossip: []string{"k1", "k2"}}, "issues with a certificate of root A"},
		{rotation.State{Roots: []string{"A", "B"}, Issuer: "B", Gossip: []string{"k2", "k1"}}, "has the keys k2, k1 for gossip"},
		{rotation.State{Roots: []string{"A", "B"}, Issuer: "B"}, "has the keys (none) for gossip"},
	} {
		if got := rotation.Lacks(&goal, &c.has, true); got != c.want {
			t.Errorf("%+v lacks %q, want %q", c.has, got, c.want)
		}
	}
	if got := rotation.Lacks(&goal, &rotation.State{}, false); got != "has not reported what it has" {
		t.Error(got)
	}
}

// member is a member of a model of a federation.
type member struct {
	roots  []string
	issuer string
}

// TestNobodyIsSeparated: without force, each two members trust the certificates of each other after
// any steps, whenever each of them gets what it should have.
func TestNobodyIsSeparated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := rotation.Authority{Issuer: "r0"}
		members := make([]member, rapid.IntRange(2, 5).Draw(t, "members"))
		for i := range members {
			members[i] = member{[]string{"r0"}, "r0"}
		}
		roots := 0
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			if i := rapid.IntRange(-1, len(members)-1).Draw(t, "who"); i >= 0 {
				members[i] = member{now.Roots(), now.Issuer} // the member renews its certificate
			} else {
				step := rapid.SampledFrom([]string{"trust", "issue", "distrust", "rollback"}).Draw(t, "step")
				needs, waiting := now.Needs(step), &rotation.Waiting{}
				for i, m := range members {
					if why := rotation.Lacks(&needs, &rotation.State{Roots: m.roots, Issuer: m.issuer}, true); why != "" {
						waiting.Members++
						waiting.Some = append(waiting.Some, fmt.Sprintf("m%d (%s)", i, why))
					}
				}
				next, err := now.Step(step, fmt.Sprintf("r%d", roots+1), waiting, false)
				if err == nil && step == "trust" {
					roots++
				}
				now = next
			}
			for i, a := range members {
				for j, b := range members {
					if !slices.Contains(a.roots, b.issuer) {
						t.Fatalf("%s: m%d trusts %v, and the certificate of m%d is of %s", now.Name(), i, a.roots, j, b.issuer)
					}
				}
			}
		}
	})
}

// TestRingSteps: a key is installed, then used, then the other one is removed.
func TestRingSteps(t *testing.T) {
	none, late := &rotation.Waiting{}, &rotation.Waiting{Members: 1, Some: []string{"region/a/server/s1 (has the keys k1 for gossip)"}}
	for _, c := range []struct {
		keys, step, id string
		waiting        *rotation.Waiting
		force          bool
		want           string
	}{
		{"k1", "install", "k2", late, false, "k1 k2"},
		{"", "install", "k1", none, false, "k1"},
		{"k1", "install", "k1", none, true, "already"},
		{"1 2 3 4 5 6 7 8", "install", "k9", none, true, "at most 8"},
		{"k1 k2", "use", "", none, false, "k2 k1"},
		{"k1 k2", "use", "k2", late, false, "has the keys k1 for gossip"},
		{"k1 k2", "use", "k2", late, true, "k2 k1"},
		{"k1 k2", "use", "k1", none, true, "in use"},
		{"k1 k2 k3", "use", "", none, true, "name one of"},
		{"k1 k2 k3", "use", "k3", none, false, "k3 k1 k2"},
		{"k1 k2", "remove", "k1", none, true, "in use"},
		{"k2 k1", "remove", "", none, false, "k2"},
		{"k2 k1", "remove", "k1", late, false, "would separate"},
		{"k2 k1", "remove", "k7", none, true, "no key"},
		{"k2", "remove", "", none, true, "name one of"},
		{"k2 k1", "drop", "k1", none, true, "use install, use or remove"},
	} {
		ring := rotation.Ring{Version: 4, Keys: strings.Fields(c.keys)}
		got, _, err := ring.Step(c.step, c.id, c.waiting, c.force)
		text := strings.Join(got.Keys, " ")
		if err != nil {
			text = err.Error()
		}
		if err == nil && (text != c.want || got.Version != 5) || err != nil && !strings.Contains(text, c.want) {
			t.Errorf("%s %s of %s: %s, want %s", c.step, c.id, c.keys, text, c.want)
		}
	}
}

// ringMember is what a server of a model has.
type ringMember []string

// TestRingSeparatesNobody: without force, each server accepts what each other server sends.
func TestRingSeparatesNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ring := rotation.Ring{Keys: []string{"k0"}}
		servers := make([]ringMember, rapid.IntRange(2, 5).Draw(t, "servers"))
		for i := range servers {
			servers[i] = ringMember{"k0"}
		}
		made := 0
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			if i := rapid.IntRange(-1, len(servers)-1).Draw(t, "who"); i >= 0 {
				servers[i] = slices.Clone(ring.Keys)
			} else {
				waiting := &rotation.Waiting{}
				for _, s := range servers {
					if !slices.Equal(s, ring.Keys) {
						waiting.Members++
						waiting.Some = append(waiting.Some, strings.Join(s, " "))
					}
				}
				step, id := rapid.SampledFrom([]string{"install", "use", "remove"}).Draw(t, "step"), rapid.SampledFrom(append([]string{""}, ring.Keys...)).Draw(t, "id")
				if step == "install" {
					made++
					id = fmt.Sprintf("k%d", made)
				}
				next, _, err := ring.Step(step, id, waiting, false)
				if err == nil {
					ring = next
				}
			}
			for i, a := range servers {
				for j, b := range servers {
					if !slices.Contains(a, b[0]) {
						t.Fatalf("ring %v: server %d has %v, and server %d sends with %s", ring.Keys, i, a, j, b[0])
					}
				}
			}
		}
	})
}

// TestRenewAt: members renew within the spread.
func TestRenewAt(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for point, want := range map[float64]time.Duration{0: 0, 0.5: 30 * time.Second, 7: time.Minute, -1: 0} {
		if got := rotation.RenewAt(at, time.Minute, point).Sub(at); got != want {
			t.Errorf("point %v: after %s, want %s", point, got, want)
		}
	}
}
