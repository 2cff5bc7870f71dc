package identity_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/security/identity"
)

func TestParse(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, c := range []struct {
		text string
		want identity.ID
	}{
		{"spiffe://nusa-0123456789abcdef", identity.ID{Kind: identity.Federation}},
		{"spiffe://nusa-0123456789abcdef/global/g1", identity.ID{Kind: identity.Global, Name: "g1"}},
		{"spiffe://nusa-0123456789abcdef/region/jakarta", identity.ID{Kind: identity.Region, Region: "jakarta"}},
		{"spiffe://nusa-0123456789abcdef/region/jakarta/server/JKT_1.example", identity.ID{Kind: identity.Server, Region: "jakarta", Name: "JKT_1.example"}},
		{"spiffe://nusa-0123456789abcdef/region/jakarta/agent/7", identity.ID{Kind: identity.Agent, Region: "jakarta", Name: "7"}},
		{"spiffe://nusa-0123456789abcdef/operator/jane.doe", identity.ID{Kind: identity.Operator, Name: "jane.doe"}},
		{"spiffe://nusa-0123456789abcdef/region/" + long + "/agent/" + long, identity.ID{Kind: identity.Agent, Region: long, Name: long}},
	} {
		c.want.Federation = "nusa-0123456789abcdef"
		got, err := identity.Parse(c.text)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.text, got, err, c.want)
		}
		if got.String() != c.text {
			t.Errorf("%s came back as %s", c.text, got)
		}
	}
}

// refused are texts that Parse must refuse. The first group are the texts that the SPIFFE
// specification forbids, the second are SPIFFE IDs that name no member of a federation.
var refused = []string{
	"", "spiffe", "spiffe:", "spiffe:/", "spiffe://", "spiffe:///global/g1", "http://f/global/g1", "SPIFFE://f/global/g1",
	"spiffe://F/global/g1", "spiffe://f:80/global/g1", "spiffe://user@f/global/g1", "spiffe://f/global/g1?x=1", "spiffe://f/global/g1?",
	"spiffe://f/global/g1#x", "spiffe://f/global/g1#", "spiffe://f/global/%67", "spiffe://f/global/g%31", "spiffe://f/", "spiffe://f/global/g1/",
	"spiffe://f//global/g1", "spiffe://f/global//g1", "spiffe://f/global/.", "spiffe://f/global/..", "spiffe://f/region/../global/g1",
	"spiffe://f/region/a/../b/agent/n", "spiffe://f/global/g 1", "spiffe://f/global/g\x00", "spiffe://f/global/gé", "spiffe://f/global/g1\n",
	" spiffe://f/global/g1", `spiffe://f/global/g\1`, "spiffe://[::1]/global/g1", "spiffe://f é/global/g1",

	"spiffe://f/global", "spiffe://f/region", "spiffe://f/operator", "spiffe://f/server/s", "spiffe://f/global/g1/x", "spiffe://f/Global/g1",
	"spiffe://f/region/a/server", "spiffe://f/region/a/node/n", "spiffe://f/region/a/server/s/x", "spiffe://f/region/A", "spiffe://f/region/1a",
	"spiffe://f/region/a_b/agent/n", "spiffe://f/region/a.b/agent/n", "spiffe://f/global/-g", "spiffe://f/global/.g", "spiffe://f/global/_g",
	"spiffe://-f/global/g1", "spiffe://f-/global/g1", "spiffe://f../global/g1", "spiffe://.f/global/g1", "spiffe://f./global/g1", "spiffe://f_1/global/g1",
	"spiffe://f/region/" + strings.Repeat("a", 64), "spiffe://" + strings.Repeat("f", 64) + "/global/g1",
	"spiffe://f/operator/" + strings.Repeat("a", 255-len("spiffe://f/operator/")+1), "spiffe://f/global/" + strings.Repeat("a", 1<<20),
}

func TestParseRefuses(t *testing.T) {
	for _, text := range refused {
		if id, err := identity.Parse(text); !errors.Is(err, identity.ErrID) {
			t.Errorf("%.80q was read as %+v, %v", text, id, err)
		} else if len(err.Error()) > 500 {
			t.Errorf("%.80q: an error of %d bytes", text, len(err.Error()))
		}
	}
	if _, err := identity.Parse("spiffe://f/operator/" + strings.Repeat("a", 255-len("spiffe://f/operator/"))); err != nil {
		t.Errorf("a text of 255 bytes: %v", err)
	}
}

// TestCheckRefuses: an ID whose fields do not belong to its kind has no text that could be
// read as another ID.
func TestCheckRefuses(t *testing.T) {
	for _, id := range []identity.ID{
		{}, {Federation: "f"}, {Federation: "f", Kind: 99}, {Federation: "f", Kind: identity.Global, Name: "g", Region: "a"},
		{Federation: "f", Kind: identity.Federation, Name: "x"}, {Federation: "f", Kind: identity.Region, Region: "a", Name: "x"},
		{Federation: "f", Kind: identity.Operator, Name: "o", Region: "a"}, {Federation: "f/global/g", Kind: identity.Federation},
		{Federation: "f", Kind: identity.Agent, Region: "a/agent/n", Name: "m"}, {Federation: "f", Kind: identity.Agent, Region: "a", Name: "n/x"},
	} {
		if err := id.Check(); !errors.Is(err, identity.ErrID) {
			t.Errorf("%+v: %v", id, err)
		}
	}
}

// drawID draws an ID, which may be invalid.
func drawID(t *rapid.T) identity.ID {
	id := identity.ID{Kind: identity.Kind(rapid.IntRange(0, 8).Draw(t, "kind"))}
	id.Federation = rapid.OneOf(rapid.StringMatching(`[a-z0-9-]{1,20}(\.[a-z0-9-]{1,10})?`), rapid.String()).Draw(t, "federation")
	strange := rapid.Bool().Draw(t, "strange")
	if strange || id.Kind == identity.Region || id.Kind.Regional() {
		id.Region = rapid.OneOf(rapid.StringMatching(`[a-z][a-z0-9-]{0,62}`), rapid.String()).Draw(t, "region")
	}
	if strange || id.Kind.Leaf() {
		id.Name = rapid.OneOf(rapid.StringMatching(`[a-zA-Z0-9._-]{1,63}`), rapid.String()).Draw(t, "name")
	}
	return id
}

// TestTextMeansOneID: the text of a valid ID is read as that ID, so two IDs never have the
// same text.
func TestTextMeansOneID(t *testing.T) {
	valid := 0
	rapid.Check(t, func(t *rapid.T) {
		id := drawID(t)
		got, err := identity.Parse(id.String())
		if id.Check() == nil {
			valid++
			if err != nil || got != id {
				t.Fatalf("%+v came back as %+v, %v", id, got, err)
			}
		}
	})
	if valid == 0 {
		t.Error("no valid ID was drawn")
	}
}

// TestRegionsAreThoseOfJobs: a name of a region in an ID is a name of a region elsewhere.
func TestRegionsAreThoseOfJobs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.StringMatching(`[a-zA-Z0-9._-]{0,65}`), rapid.String()).Draw(t, "name")
		id := identity.ID{Federation: "f", Kind: identity.Region, Region: name}
		if got, want := id.Check() == nil, job.ValidName(name); got != want {
			t.Fatalf("region %q: valid in an ID: %t, elsewhere: %t", name, got, want)
		}
	})
}

func TestRules(t *testing.T) {
	agent := identity.ID{Federation: "f", Kind: identity.Agent, Region: "a", Name: "n1"}
	server := identity.ID{Federation: "f", Kind: identity.Server, Region: "b", Name: "s1"}
	global := identity.ID{Federation: "f", Kind: identity.Global, Name: "g1"}
	operator := identity.ID{Federation: "f", Kind: identity.Operator, Name: "jane"}
	all := []identity.ID{agent, server, global, operator, {}, {Federation: "f", Kind: identity.Federation}, {Federation: "f", Kind: identity.Region, Region: "a"}}
	for _, c := range []struct {
		rules identity.Rules
		text  string
		want  []identity.ID
	}{
		{nil, "no peer", nil},
		{identity.Rules{{Kind: identity.Agent}}, "an agent of any region", []identity.ID{agent}},
		{identity.Rules{{Kind: identity.Agent, Region: "b"}}, "an agent of region b", nil},
		{identity.Rules{{Kind: identity.Agent, Region: "a", Name: "n1"}}, "agent n1 of region a", []identity.ID{agent}},
		{identity.Rules{{Kind: identity.Agent, Region: "a", Name: "n2"}}, "agent n2 of region a", nil},
		{identity.Rules{{Kind: identity.Server}, {Kind: identity.Operator}}, "a regional server of any region, or an operator", []identity.ID{server, operator}},
		{identity.Rules{{Kind: identity.Global}}, "a global server", []identity.ID{global}},
	} {
		if got := c.rules.String(); got != c.text {
			t.Errorf("rules are %q, want %q", got, c.text)
		}
		for _, id := range all {
			want := false
			for _, w := range c.want {
				want = want || w == id
			}
			if err := c.rules.Check(id); (err == nil) != want || err != nil && !errors.Is(err, identity.ErrNotExpected) {
				t.Errorf("%s: %s: %v, want allowed %t", c.text, id.Describe(), err, want)
			}
		}
	}
	if identity.ServersOf("") != nil || identity.AgentsOf("") != nil || identity.ServersOf("b").Check(server) != nil || identity.AgentsOf("a").Check(agent) != nil {
		t.Error("a rule without a region allows a member of a region, or one with a region does not")
	}
	err := identity.Rules{{Kind: identity.Server, Region: "b"}}.Check(agent)
	if want := "another peer was expected: the certificate names agent n1 of region a, and allowed is a regional server of region b"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range refused[:30] {
		f.Add(text)
	}
	f.Add("spiffe://nusa-0123456789abcdef/region/jakarta/server/JKT_1.example")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := identity.Parse(text)
		if err != nil {
			return
		}
		if id.String() != text || id.Check() != nil {
			t.Fatalf("%q was read as %+v: %q, %v", text, id, id, id.Check())
		}
	})
}
