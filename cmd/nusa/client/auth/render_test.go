package auth

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRendering shows every table from fixed messages, plain and in colour.
func TestRendering(t *testing.T) {
	in := func(w *term.Screen, d time.Duration) *timestamppb.Timestamp { return timestamppb.New(w.Now.Add(d)) }
	role := &nusav1.AuthRole{Name: "deployer", Rules: []*nusav1.AuthRule{
		{Allow: true, Verbs: []string{"read", "submit"}, Kinds: []string{"job"}, Namespaces: []string{"pay-*"}},
		{Verbs: []string{"exec"}, Kinds: []string{"allocation"}, Regions: []string{"eu", "us"}},
		{Allow: true, Verbs: []string{"submit"}, Kinds: []string{"job"}, Condition: "job.priority < 50"},
	}}
	no := &nusav1.CanIResponse{
		Principal: "operator/joe", Reason: "operator/joe may not exec allocation in namespace pay, any region: no rule allows this: the roles are viewer",
		Steps: []*nusav1.AccessStep{
			{Role: "night", Number: 1, Rule: "deny exec of allocation", Binding: "nights"},
			{Role: "viewer", Number: 1, Rule: "allow read of job", Misses: "another kind"},
		},
	}
	sample.Render(t, []sample.Rendering{
		sample.Of("auth whoami", func(w *term.Screen) {
			writeWhoAmI(w, &nusav1.WhoAmIResponse{Principal: "token/abcdefgh", Credential: "token", Roles: []string{"deployer", "viewer"}, Expires: in(w, time.Hour), PolicyVersion: 7, PolicyAge: durationpb.New(3 * time.Second)})
		}),
		sample.Of("auth whoami, no binding", func(w *term.Screen) {
			writeWhoAmI(w, &nusav1.WhoAmIResponse{Principal: "operator/jane", Credential: "certificate", Roles: []string{"admin"}, Unbound: true})
		}),
		sample.Of("auth whoami, narrowed", func(w *term.Screen) {
			writeWhoAmI(w, &nusav1.WhoAmIResponse{Principal: "operator/joe", Credential: "certificate", Roles: []string{"submitter", "viewer"}, Awaits: true, Grants: []*nusav1.AuthGrant{
				{Role: "submitter", Binding: "pay", Namespaces: []string{"pay", "web-*"}, Regions: []string{"eu"}}, {Role: "viewer", Binding: "all"},
			}})
		}),
		sample.Of("auth can-i, depends", func(w *term.Screen) {
			writeAnswer(w, &nusav1.CanIResponse{Depends: true, Reason: "whether operator/jane may submit job in namespace pay depends on the job: rule 1 of role deployer"})
		}),
		sample.Of("auth whoami, not encrypted", func(w *term.Screen) { writeWhoAmI(w, &nusav1.WhoAmIResponse{Unbound: true}) }),
		sample.Of("auth can-i", func(w *term.Screen) { writeAnswer(w, no) }),
		sample.Of("auth explain", func(w *term.Screen) { writeSteps(w, no) }),
		sample.Of("auth role list", func(w *term.Screen) {
			writeRoles(w, []*nusav1.AuthRole{{Name: "empty", BuiltIn: true}, role})
		}),
		sample.Of("auth binding list", func(w *term.Screen) {
			writeBindings(w, []*nusav1.AuthBinding{{Name: "pay", Role: "submitter", Subjects: []string{"operator/joe", "token/*"}, Namespaces: []string{"pay"}}})
		}),
		sample.Of("auth binding list, none", func(w *term.Screen) { writeBindings(w, nil) }),
		sample.Of("auth token list", func(w *term.Screen) {
			writeTokens(w, []*nusav1.AccessToken{
				{Accessor: "abcdefgh", Roles: []string{"viewer"}, Namespaces: []string{"pay"}, Expires: in(w, 36*time.Hour), CreatedBy: "operator/jane", Description: "dashboards"},
				{Accessor: "ijklmnop", Local: true, Expires: in(w, -time.Hour), CreatedBy: "operator/jane"},
			})
		}),
		sample.Of("auth provider list", func(w *term.Screen) {
			writeProviders(w, []*nusav1.AuthProvider{
				{Name: "corp", Issuer: "https://id.example.com", ClientId: "nusa", Rules: []*nusav1.ProviderRule{{Role: "admin", Condition: `"ops" in claims.groups`}, {Role: "viewer", Condition: "true"}}},
				{Name: "other", Issuer: "https://other.example.com/x", ClientId: "n", MaxTtl: durationpb.New(time.Hour)},
			}, "g1:7600", "0123456789abcdef0123456789abcdef")
		}),
		sample.Of("auth provider list, none", func(w *term.Screen) { writeProviders(w, nil, "g1:7600", "") }),
		sample.Of("auth token list, none", func(w *term.Screen) { writeTokens(w, nil) }),
	})
}

// TestRules: the text of a rule is what the flags of `role set` read.
func TestRules(t *testing.T) {
	for _, text := range []string{"read,submit job", "* *", "exec allocation namespace=pay-*,web region=eu", "submit,plan job region=eu if job.priority < 50 && request.name != 'a if b'"} {
		for _, allow := range []bool{true, false} {
			r, err := parseRule(text, allow)
			if err != nil {
				t.Fatal(err)
			}
			if got := ruleText(r); got != map[bool]string{true: "allow ", false: "deny "}[allow]+text {
				t.Errorf("%q came back as %q", text, got)
			}
		}
	}
	for _, text := range []string{"", "read", "read job namespace", "read job x=y", "read job pay", "read job if ", "read if x"} {
		if r, err := parseRule(text, true); err == nil && (len(r.GetNamespaces()) == 0 || r.GetNamespaces()[0] != "") {
			t.Errorf("%q was read as %v", text, r)
		}
	}
}
