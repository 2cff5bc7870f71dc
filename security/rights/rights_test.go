package rights_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
	"github.com/nusa-scheduler/nusa/security/rights"
)

func binding(name, role string, subjects ...string) *nusav1.AuthBinding {
	return &nusav1.AuthBinding{Name: name, Role: role, Subjects: subjects}
}

// TestChanges makes changes one after the other. Each has the error that it must have, and a change
// with an error leaves the set as it was.
func TestChanges(t *testing.T) {
	set, err := rights.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	jane, forced := rights.Change{By: "operator/jane"}, rights.Change{By: "operator/jane", Force: true}
	rule := &nusav1.AuthRule{Allow: true, Verbs: []string{"read"}, Kinds: []string{"job"}}
	noRoles := &nusav1.AuthRule{Verbs: []string{"*"}, Kinds: []string{"role"}}
	token := func(req *nusav1.CreateAccessTokenRequest) func(*rights.Set) (*rights.Set, error) {
		return func(s *rights.Set) (*rights.Set, error) {
			next, _, _, err := s.CreateToken(rights.NewToken{Request: req, Now: time.Unix(1e6, 0)})
			return next, err
		}
	}
	for i, c := range []struct {
		change func(*rights.Set) (*rights.Set, error)
		want   error
	}{
		{func(s *rights.Set) (*rights.Set, error) {
			return s.SetBinding(binding("joe", "admin", "operator/joe"), jane)
		}, rights.ErrLockout},
		{func(s *rights.Set) (*rights.Set, error) {
			return s.SetBinding(binding("jane", "admin", "operator/j*"), jane)
		}, nil},
		{func(s *rights.Set) (*rights.Set, error) {
			return s.SetBinding(binding("x", "none", "operator/x"), jane)
		}, rights.ErrInvalid},
		{func(s *rights.Set) (*rights.Set, error) {
			return s.SetBinding(binding("A B", "admin", "operator/x"), jane)
		}, rights.ErrInvalid},
		{func(s *rights.Set) (*rights.Set, error) { return s.SetBinding(binding("x", "admin"), jane) }, rights.ErrInvalid},
		{func(s *rights.Set) (*rights.Set, error) {
			return s.SetBinding(binding("x", "viewer", "operator/x", "jane"), jane) // without operator/ nobody is meant
		}, rights.ErrInvalid},
		{func(s *rights.Set) (*rights.Set, error) {
			return s.SetBinding(binding("x", "viewer", "joe*"), jane)
		}, rights.ErrInvalid},
		{func(s *rights.Set) (*rights.Set, error) { return s.SetBinding(nil, jane) }, rights.ErrInvalid},
		{func(s *rights.Set) (*rights.Set, error) { return s.SetRole(&nusav1.AuthRole{Name: "admin"}, jane) }, rights.ErrInvalid},
		{func(s *rights.Set) (*rights.Set, error) {
			return s.SetRole(&nusav1.AuthRole{Name: "reader", Rules: []*nusav1.AuthRule{rule}}, jane)
		}, nil},
		{func(s *rights.Set) (*rights.Set, error) {
			return s.SetBinding(binding("readers", "reader", "operator/*"), jane)
		}, nil},
		{func(s *rights.Set) (*rights.Set, error) {
			return s.SetBinding(binding("some", "reader", "*", "op*", "t?ken/*", "token/abcd"), jane)
		}, nil},
		{func(s *rights.Set) (*rights.Set, error) { return s.RemoveBinding("some", jane) }, nil},
		{func(s *rights.Set) (*rights.Set, error) { return s.RemoveRole("reader") }, rights.ErrInUse},
		{func(s *rights.Set) (*rights.Set, error) {
			return s.SetRole(&nusav1.AuthRole{Name: "reader", Rules: []*nusav1.AuthRule{rule, noRoles}}, jane)
		}, rights.ErrLockout},
		{func(s *rights.Set) (*rights.Set, error) { return s.RemoveBinding("jane", jane) }, rights.ErrLockout},
		{func(s *rights.Set) (*rights.Set, error) { return s.RemoveBinding("nobody", jane) }, rights.ErrUnknown},
		{func(s *rights.Set) (*rights.Set, error) { return s.RemoveBinding("readers", jane) }, nil},
		{token(&nusav1.CreateAccessTokenRequest{Roles: []string{"reader"}}), nil},
		{token(&nusav1.CreateAccessTokenRequest{Roles: []string{"none"}}), rights.ErrInvalid},
		{token(&nusav1.CreateAccessTokenRequest{Namespaces: []string{"a b"}, Roles: []string{"viewer"}}), rights.ErrInvalid},
		{token(&nusav1.CreateAccessTokenRequest{Ttl: durationpb.New(time.Second)}), rights.ErrInvalid},
		{token(&nusav1.CreateAccessTokenRequest{Description: strings.Repeat("x", 129)}), rights.ErrInvalid},
		{func(s *rights.Set) (*rights.Set, error) { return s.RemoveRole("reader") }, rights.ErrInUse},
		{func(s *rights.Set) (*rights.Set, error) { return s.RevokeToken("x") }, rights.ErrUnknown},
		{func(s *rights.Set) (*rights.Set, error) { return s.RevokeToken(s.Tokens()[0].GetAccessor()) }, nil},
		{func(s *rights.Set) (*rights.Set, error) { return s.RemoveRole("reader") }, nil},
		{func(s *rights.Set) (*rights.Set, error) { return s.RemoveRole("viewer") }, rights.ErrUnknown},
		{func(s *rights.Set) (*rights.Set, error) { return s.RemoveBinding("jane", jane) }, rights.ErrLast},
		{func(s *rights.Set) (*rights.Set, error) { return s.RemoveBinding("jane", forced) }, nil},
	} {
		before := proto.CloneOf(set.Message())
		next, err := c.change(set)
		if !errors.Is(err, c.want) || (err == nil) != (next != nil) {
			t.Fatalf("change %d: %v, want %v", i+1, err, c.want)
		}
		if !proto.Equal(before, set.Message()) {
			t.Fatalf("change %d changed the set before it", i+1)
		}
		if next != nil {
			set = next
		}
	}
	if !set.Unbound() || len(set.Message().GetRoles())+len(set.Message().GetTokens()) > 0 {
		t.Errorf("the set at the end: %v", set.Message())
	}
}

// TestUnknownActions: a question about a verb or a kind that does not exist fails, and the error
// names those that exist.
func TestUnknownActions(t *testing.T) {
	set, err := rights.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ verb, kind, want string }{
		{"exek", "allocation", `kind allocation has no verb "exek": use read, stop, restart, signal, logs, files, exec`},
		{"read", "jobs", `kind "jobs" does not exist: use job, allocation,`},
	} {
		_, err := set.CanI(t.Context(), &nusav1.CanIRequest{Verb: c.verb, Kind: c.kind})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %s", c.verb, c.kind, err, c.want)
		}
	}
}

// TestManyActions: one question may have many actions of one place, and each gets its answer.
func TestManyActions(t *testing.T) {
	set, err := rights.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	bound := binding("pay", "operator", "operator/joe")
	bound.Namespaces = []string{"pay"}
	for _, b := range []*nusav1.AuthBinding{binding("admin", "admin", "operator/jane"), bound} {
		if set, err = set.SetBinding(b, rights.Change{}); err != nil {
			t.Fatal(err)
		}
	}
	for namespace, want := range map[string]string{"pay": "stop job true false, set role false false", "web": "stop job false false, set role false false", "": "stop job false true, set role false false"} {
		resp, err := set.CanI(t.Context(), &nusav1.CanIRequest{Namespace: namespace, Actions: []string{"stop job", "set role"}, As: "operator/joe"})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range resp.GetAnswers() {
			got = append(got, fmt.Sprintf("%s %v %v", a.GetAction(), a.GetAllowed(), a.GetSomewhere()))
		}
		if text := strings.Join(got, ", "); text != want || resp.GetAllowed() || resp.GetReason() != "" {
			t.Errorf("namespace %q: %s, want %s; %v", namespace, text, want, resp)
		}
	}
	for _, bad := range [][]string{{"stop job", "stop"}, {"stop  job"}, make([]string, 65)} {
		if _, err := set.CanI(t.Context(), &nusav1.CanIRequest{Actions: bad}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%d actions: %v", len(bad), err)
		}
	}
	if resp, err := set.CanI(t.Context(), &nusav1.CanIRequest{Verb: "read", Kind: "job", Actions: []string{"stop job"}}); err != nil || !resp.GetAllowed() || !resp.GetAnswers()[0].GetAllowed() {
		t.Errorf("without an identity: %v, %v", resp, err)
	}
}

// TestBounds: a set is bounded in bytes and in tokens.
func TestBounds(t *testing.T) {
	set, err := rights.New(nil)
	if _, err := set.SetRole(nil, rights.Change{}); !errors.Is(err, rights.ErrInvalid) {
		t.Errorf("no role: %v", err)
	}
	for i := 0; err == nil; i++ {
		b := binding(fmt.Sprintf("b%d", i), "viewer")
		for n := range 60 {
			b.Subjects = append(b.Subjects, fmt.Sprintf("operator/%d%s", n, strings.Repeat("x", 200)))
		}
		set, err = set.SetBinding(b, rights.Change{})
	}
	if !errors.Is(err, rights.ErrFull) {
		t.Error(err)
	}
	set, err = rights.New(nil)
	for i := 0; err == nil; i++ {
		n := rights.NewToken{Request: &nusav1.CreateAccessTokenRequest{}, Now: time.Unix(1e6, 0)}
		n.Random[0], n.Random[1] = byte(i), byte(i>>8)
		set, _, _, err = set.CreateToken(n)
	}
	if !errors.Is(err, rights.ErrFull) {
		t.Error(err)
	}
}

// TestCache: the cache answers as Decide does, also after more questions than it holds.
func TestCache(t *testing.T) {
	set, err := rights.New(&nusav1.AuthSet{Bindings: []*nusav1.AuthBinding{{Name: "x", Role: "viewer", Subjects: []string{"operator/jane"}, Namespaces: []string{"n1*"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for i := range 5000 {
			a := authz.Action{Verb: "read", Kind: "job", Namespace: fmt.Sprintf("n%d", i)}
			for _, name := range []string{"jane", "joe"} {
				who := set.Operator(name)
				if got, want := set.Allowed(who, a), set.Decide(who, a).Allowed; got != want {
					t.Fatalf("%s %s: %t, want %t", name, a, got, want)
				}
			}
		}
	}
}

// BenchmarkAllowed is the decision of one message of SubmitMany.
func BenchmarkAllowed(b *testing.B) {
	set, err := rights.New(&nusav1.AuthSet{Bindings: []*nusav1.AuthBinding{{Name: "x", Role: "submitter", Subjects: []string{"operator/jane"}, Namespaces: []string{"pay*"}}}})
	if err != nil {
		b.Fatal(err)
	}
	ctx := rights.With(b.Context(), &rights.Call{Set: set, Who: set.Operator("jane"), Verb: "submit", Kind: "job"})
	b.ReportAllocs()
	for b.Loop() {
		if err := rights.Of(ctx).Check("pay", "", "api"); err != nil {
			b.Fatal(err)
		}
	}
}
