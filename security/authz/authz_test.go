package authz_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/internal/golden"
	"github.com/nusa-scheduler/nusa/security/authz"
)

// TestRoles writes which built-in role may do what.
func TestRoles(t *testing.T) {
	var out strings.Builder
	fmt.Fprintf(&out, "%-24s", "")
	for _, role := range authz.Builtin() {
		fmt.Fprintf(&out, "%-11s", role)
	}
	fmt.Fprintln(&out)
	for _, k := range authz.Kinds() {
		for _, verb := range k.Verbs {
			line := fmt.Sprintf("%-24s", k.Name+" "+verb)
			for _, role := range authz.Builtin() {
				d := authz.Decide(authz.Principal{Name: "operator/jane", Roles: []string{role}}, authz.Action{Verb: verb, Kind: k.Name}, &authz.Policy{})
				line += fmt.Sprintf("%-11s", map[bool]string{true: "yes", false: "-"}[d.Allowed])
			}
			fmt.Fprintln(&out, strings.TrimRight(line, " "))
		}
	}
	golden.File(t, "testdata/roles.txt", out.String())
}

func allow(verbs, kinds string) authz.Rule {
	return authz.Rule{Effect: authz.Allow, Verbs: strings.Fields(verbs), Kinds: strings.Fields(kinds)}
}

func deny(verbs, kinds string) authz.Rule {
	r := allow(verbs, kinds)
	r.Effect = authz.Deny
	return r
}

func in(r authz.Rule, namespaces, regions string) authz.Rule {
	r.Namespaces, r.Regions = strings.Fields(namespaces), strings.Fields(regions)
	return r
}

func when(r authz.Rule, condition string, holds func(authz.Action) (bool, error)) authz.Rule {
	r.Condition, r.Holds = condition, holds
	return r
}

func always(authz.Action) (bool, error) { return true, nil }
func never(authz.Action) (bool, error)  { return false, nil }
func fails(authz.Action) (bool, error)  { return false, errors.New("no such field") }

// TestDecide: each row has the rules of one role and the answer to "exec allocation" in
// namespace pay of region jakarta.
func TestDecide(t *testing.T) {
	exec := authz.Action{Verb: "exec", Kind: "allocation", Namespace: "pay", Region: "jakarta", Name: "api-1"}
	all := exec
	all.Namespace = authz.Any
	node := authz.Action{Verb: "read", Kind: "node", Namespace: "pay", Region: "jakarta", Name: "n1"}
	for name, c := range map[string]struct {
		rules  []authz.Rule
		action authz.Action
		want   bool
		reason string
	}{
		"no rule":                              {nil, exec, false, "operator/jane may not exec allocation api-1 in namespace pay, region jakarta: no rule allows this: the roles are x"},
		"allowed":                              {[]authz.Rule{allow("exec", "allocation")}, exec, true, "rule 1 of role x"},
		"another verb":                         {[]authz.Rule{allow("read logs stop", "allocation")}, exec, false, "no rule"},
		"another kind":                         {[]authz.Rule{allow("*", "job")}, exec, false, "no rule"},
		"any verb of any kind":                 {[]authz.Rule{allow("*", "*")}, exec, true, ""},
		"deny after allow":                     {[]authz.Rule{allow("*", "*"), deny("exec", "*")}, exec, false, "rule 2 of role x (deny exec of *) denies this"},
		"deny before allow":                    {[]authz.Rule{deny("*", "allocation"), allow("*", "*")}, exec, false, "rule 1 of role x"},
		"pattern of namespaces":                {[]authz.Rule{in(allow("*", "*"), "p*", "")}, exec, true, ""},
		"another namespace":                    {[]authz.Rule{in(allow("*", "*"), "q* pa", "")}, exec, false, "no rule"},
		"another region":                       {[]authz.Rule{in(allow("*", "*"), "pay", "eu-*")}, exec, false, "no rule"},
		"all namespaces, one allowed":          {[]authz.Rule{in(allow("*", "*"), "pay", "")}, all, false, "exec allocation api-1 in any namespace"},
		"all namespaces, one denied":           {[]authz.Rule{allow("*", "*"), in(deny("*", "*"), "x", "")}, all, false, "rule 2"},
		"left out namespace, one denied":       {[]authz.Rule{allow("*", "*"), in(deny("*", "*"), "x", "")}, authz.Action{Verb: "read", Kind: "job"}, false, "rule 2"},
		"a kind without namespaces":            {[]authz.Rule{in(allow("*", "*"), "pay", "")}, node, false, "read node n1 in region jakarta"},
		"a kind without namespaces, unlimited": {[]authz.Rule{in(allow("*", "*"), "*", "jakarta")}, node, true, ""},
		"the condition holds":                  {[]authz.Rule{when(allow("*", "*"), "c", always)}, exec, true, ""},
		"the condition does not hold":          {[]authz.Rule{when(allow("*", "*"), "c", never)}, exec, false, "no rule"},
		"the condition fails":                  {[]authz.Rule{when(allow("*", "*"), "c", fails)}, exec, false, "no rule"},
		"the condition is not compiled":        {[]authz.Rule{when(allow("*", "*"), "c", nil)}, exec, false, "no rule"},
		"a denying condition does not hold":    {[]authz.Rule{allow("*", "*"), when(deny("*", "*"), "c", never)}, exec, true, "rule 1"},
		"a denying condition fails":            {[]authz.Rule{allow("*", "*"), when(deny("*", "*"), "c", fails)}, exec, false, "rule 2 of role x (deny * of * if c)"},
		"a denying condition is not compiled":  {[]authz.Rule{allow("*", "*"), when(deny("*", "*"), "c", nil)}, exec, false, "rule 2"},
		"an unknown verb":                      {[]authz.Rule{allow("*", "*")}, authz.Action{Verb: "run", Kind: "job"}, false, `no verb "run" of a kind "job"`},
		"an unknown kind":                      {[]authz.Rule{allow("*", "*")}, authz.Action{Verb: "read", Kind: "jobs"}, false, `a kind "jobs"`},
		"the verb of another kind":             {[]authz.Rule{allow("*", "*")}, authz.Action{Verb: "exec", Kind: "job"}, false, "no verb"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &authz.Policy{Version: 1, Roles: []authz.Role{{Name: "x", Rules: c.rules}}}
			if err := p.Check(); err != nil {
				t.Fatal(err)
			}
			who := authz.Principal{Name: "operator/jane", Roles: []string{"x"}}
			d := authz.Decide(who, c.action, p)
			if d.Allowed != c.want || !strings.Contains(d.Reason, c.reason) {
				t.Errorf("%+v, want %t and %q", d, c.want, c.reason)
			}
			if explained, steps := authz.Explain(who, c.action, p); explained != d || d.Rule != "" && len(steps) != len(c.rules) {
				t.Errorf("Explain: %+v, %d steps, and Decide: %+v", explained, len(steps), d)
			}
		})
	}
}

// TestBindings: roles come from the credential or from bindings, and a binding narrows a role.
func TestBindings(t *testing.T) {
	p := &authz.Policy{Version: 7, Bindings: []authz.Binding{
		{Role: "viewer", Subjects: []string{"operator/*"}},
		{Role: "submitter", Subjects: []string{"operator/jane", "token/a1"}, Namespaces: []string{"pay-*"}, Regions: []string{"jakarta"}},
	}}
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	submit := func(namespace, region string) authz.Action {
		return authz.Action{Verb: "submit", Kind: "job", Namespace: namespace, Region: region}
	}
	read := authz.Action{Verb: "read", Kind: "job"}
	for name, c := range map[string]struct {
		who    authz.Principal
		action authz.Action
		want   bool
		reason string
	}{
		"her namespace":       {authz.Principal{Name: "operator/jane"}, submit("pay-eu", "jakarta"), true, "role submitter"},
		"another namespace":   {authz.Principal{Name: "operator/jane"}, submit("web", "jakarta"), false, "the roles are submitter, viewer"},
		"another region":      {authz.Principal{Name: "operator/jane"}, submit("pay-eu", "eu"), false, "no rule"},
		"any region":          {authz.Principal{Name: "operator/jane"}, submit("pay-eu", ""), false, "any region"},
		"a token":             {authz.Principal{Name: "token/a1"}, submit("pay-eu", "jakarta"), true, "role submitter"},
		"a token cannot list": {authz.Principal{Name: "token/a1"}, read, false, "no rule"},
		"a viewer":            {authz.Principal{Name: "operator/joe"}, read, true, "role viewer"},
		"nobody":              {authz.Principal{Name: "token/zz"}, read, false, "the principal has no roles"},
		"its own role":        {authz.Principal{Name: "token/zz", Roles: []string{"admin"}}, read, true, "role admin"},
		"no such role":        {authz.Principal{Name: "token/zz", Roles: []string{"admin", "gone"}}, read, false, `version 7 of the policy has no role "gone"`},
		"no name":             {authz.Principal{Roles: []string{"admin"}}, read, false, "no name"},
	} {
		if d := authz.Decide(c.who, c.action, p); d.Allowed != c.want || !strings.Contains(d.Reason, c.reason) {
			t.Errorf("%s: %+v, want %t and %q", name, d, c.want, c.reason)
		}
	}
}

// TestExplain writes what each rule said.
func TestExplain(t *testing.T) {
	p := &authz.Policy{
		Roles: []authz.Role{{Name: "night", Rules: []authz.Rule{
			deny("exec", "allocation"), in(allow("*", "*"), "web", ""), in(allow("*", "*"), "", "eu"), when(allow("*", "*"), "bad", fails), when(allow("*", "*"), "day", never)}}},
		Bindings: []authz.Binding{
			{Role: "submitter", Subjects: []string{"operator/jane"}, Namespaces: []string{"web"}},
			{Role: "submitter", Subjects: []string{"operator/jane"}, Regions: []string{"eu"}},
			{Role: "night", Subjects: []string{"*"}}},
	}
	var out strings.Builder
	for _, verb := range []string{"exec", "stop", "logs"} {
		d, steps := authz.Explain(authz.Principal{Name: "operator/jane", Roles: []string{"viewer"}}, authz.Action{Verb: verb, Kind: "allocation", Namespace: "pay", Region: "jakarta"}, p)
		fmt.Fprintf(&out, "%s\n", d.Reason)
		for _, s := range steps {
			fmt.Fprintf(&out, "  %s rule %d, binding %d: %s: %s\n", s.Role, s.Number, s.Given, s.Rule, map[bool]string{true: "matches"}[s.Misses == ""]+s.Misses)
		}
	}
	golden.File(t, "testdata/explain.txt", out.String())
}

func TestCheck(t *testing.T) {
	one := func(r authz.Rule) *authz.Policy {
		return &authz.Policy{Roles: []authz.Role{{Name: "x", Rules: []authz.Rule{r}}}}
	}
	bound := func(b authz.Binding) *authz.Policy { return &authz.Policy{Bindings: []authz.Binding{b}} }
	many := strings.Repeat("a ", authz.MaxList+1)
	for name, c := range map[string]struct {
		policy *authz.Policy
		want   string
	}{
		"built in":          {&authz.Policy{Roles: []authz.Role{{Name: "admin"}}}, "role admin is built in"},
		"twice":             {&authz.Policy{Roles: []authz.Role{{Name: "x"}, {Name: "x"}}}, "role x is there twice"},
		"a bad name":        {&authz.Policy{Roles: []authz.Role{{Name: "X"}}}, "not a name of a role"},
		"too many roles":    {&authz.Policy{Roles: make([]authz.Role, authz.MaxRoles+1)}, "257 roles"},
		"too many rules":    {&authz.Policy{Roles: []authz.Role{{Name: "x", Rules: make([]authz.Rule, authz.MaxRules+1)}}}, "65 rules"},
		"too many bindings": {&authz.Policy{Bindings: make([]authz.Binding, authz.MaxBindings+1)}, "2049 bindings"},
		"no verb":           {one(allow("", "job")), "0 verbs"},
		"no kind":           {one(allow("*", "")), "0 kinds"},
		"an unknown kind":   {one(allow("*", "jobs")), `role x, rule 1: kinds: kind "jobs" does not exist: use job, allocation`},
		"another's verb":    {one(allow("exec", "job")), `none of the rule's kinds (job) has the verb "exec"`},
		"an unknown verb":   {one(allow("run", "*")), `the verb "run"`},
		"a bad pattern":     {one(in(allow("*", "*"), "é", "")), "namespaces: pattern"},
		"too many regions":  {one(in(allow("*", "*"), "", many)), "65 regions"},
		"a long condition":  {one(when(allow("*", "*"), strings.Repeat("x", authz.MaxCondition+1), nil)), "4097 bytes"},
		"no text":           {one(when(allow("*", "*"), "", always)), "no text"},
		"an effect":         {one(authz.Rule{Effect: 2, Verbs: []string{"*"}, Kinds: []string{"*"}}), "effect 2"},
		"no such role":      {bound(authz.Binding{Role: "y", Subjects: []string{"*"}}), `role "y" does not exist`},
		"no subject":        {bound(authz.Binding{Role: "viewer"}), "0 subjects"},
		"a bad subject":     {bound(authz.Binding{Role: "viewer", Subjects: []string{""}}), "binding 1 of role viewer: subjects"},
	} {
		if err := c.policy.Check(); !errors.Is(err, authz.ErrPolicy) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
