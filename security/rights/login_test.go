package rights_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
	"github.com/nusa-scheduler/nusa/security/rights"
)

var noon = time.Unix(1_800_000_000, 0)

// people is a set with a provider.
func people(t *testing.T) *rights.Set {
	t.Helper()
	s, err := rights.New(nil)
	if err == nil {
		s, err = s.SetProvider(&nusav1.AuthProvider{Name: "corp", Issuer: "https://id", ClientId: "nusa", Rules: []*nusav1.ProviderRule{{Role: "viewer", Condition: "true"}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// login logs a user in. n makes the ID token and the secret of each login different.
func login(s *rights.Set, user string, n byte, roles ...string) (*rights.Set, *nusav1.AccessToken, string, error) {
	in := rights.NewLogin{User: user, Roles: roles, IDToken: []byte{n}, Life: time.Hour, Now: noon.Add(time.Duration(n) * time.Second), Until: noon.Add(time.Minute)}
	in.Random[0] = n
	return s.Login(in)
}

// TestLogin: a user has the roles of the login and those of bindings, until the token ends. An ID
// token works once.
func TestLogin(t *testing.T) {
	s, made, text, err := login(people(t), "user/jane@corp", 1, "viewer")
	if err != nil || made.GetHash() != nil || made.GetUser() != "user/jane@corp" {
		t.Fatalf("%v, %v", made, err)
	}
	who, token, err := s.Token(text, noon)
	if err != nil || who.Name != "user/jane@corp" || token.GetAccessor() != made.GetAccessor() {
		t.Fatalf("%v, %v", who, err)
	}
	if !s.Allowed(who, authz.Action{Verb: "read", Kind: "job"}) || s.Allowed(who, authz.Action{Verb: "submit", Kind: "job"}) {
		t.Error("jane is no viewer")
	}
	if s, err = s.SetBinding(&nusav1.AuthBinding{Name: "b", Role: "submitter", Subjects: []string{"user/*@corp"}, Namespaces: []string{"pay"}}, rights.Change{}); err != nil {
		t.Fatal(err)
	}
	if !s.Allowed(who, authz.Action{Verb: "submit", Kind: "job", Namespace: "pay"}) || len(s.RolesOf(who)) != 2 {
		t.Errorf("the binding of users has no effect: %v", s.RolesOf(who))
	}
	if _, _, err := s.Token(text, noon.Add(2*time.Hour)); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("a login of yesterday: %v", err)
	}
	if _, _, _, err := login(s, "user/jane@corp", 1, "viewer"); !errors.Is(err, rights.ErrReplayed) {
		t.Errorf("a second login with the same ID token: %v", err)
	}
	if s, err = s.RevokeToken(made.GetAccessor()); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := login(s, "user/jane@corp", 1, "viewer"); !errors.Is(err, rights.ErrReplayed) {
		t.Errorf("the same ID token after a logout: %v", err)
	}
	if _, _, err := s.Token(text, noon); !errors.Is(err, rights.ErrUnknown) {
		t.Errorf("after a logout: %v", err)
	}
}

// TestLoginsOfDifferentRoles: the answers for one login are not those for another login of the same
// user.
func TestLoginsOfDifferentRoles(t *testing.T) {
	s, _, first, err := login(people(t), "user/jane@corp", 1, "admin")
	if err != nil {
		t.Fatal(err)
	}
	s, _, second, err := login(s, "user/jane@corp", 2, "viewer")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{first: true, second: false} {
		who, _, err := s.Token(text, noon)
		if got := s.Allowed(who, authz.Action{Verb: "set", Kind: "role"}); err != nil || got != want {
			t.Errorf("%v, %v", got, err)
		}
	}
	if who, err := s.Principal("user/jane@corp"); err != nil || strings.Join(who.Roles, "") != "viewer" {
		t.Errorf("the latest login has the roles %v, %v", who.Roles, err)
	}
	if who, err := s.Principal("user/joe@corp"); err != nil || len(who.Roles) > 0 {
		t.Errorf("%v, %v", who, err)
	}
	if who, err := s.Principal("user/joe@other"); err == nil {
		t.Errorf("a user of no provider: %v", who)
	}
}

// TestBoundsOfLogins: a user has at most eight access tokens, and many logins in a short time are
// refused. What has ended leaves the set.
func TestBoundsOfLogins(t *testing.T) {
	s := people(t)
	var err error
	var texts []string
	for n := range byte(10) {
		text := ""
		if s, _, text, err = login(s, "user/jane@corp", n, "viewer"); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	for n, text := range texts {
		if _, _, err := s.Token(text, noon); (err == nil) != (n >= 2) {
			t.Errorf("token %d of 10: %v", n, err)
		}
	}
	late := rights.NewLogin{User: "user/joe@corp", IDToken: []byte("x"), Life: time.Hour, Now: noon.Add(3 * time.Hour), Until: noon.Add(4 * time.Hour)}
	late.Random[0] = 99
	if s, _, _, err = s.Login(late); err != nil {
		t.Fatal(err)
	}
	if m := s.Message(); len(m.GetTokens()) != 1 || len(m.GetUsedLogins()) != 1 {
		t.Errorf("%d tokens and %d ID tokens are left", len(m.GetTokens()), len(m.GetUsedLogins()))
	}
	for n := 0; err == nil && n < 2000; n++ {
		late.IDToken, late.Random[0], late.Random[1] = []byte{byte(n), byte(n >> 8)}, byte(n), 128+byte(n>>8)
		s, _, _, err = s.Login(late)
	}
	if !errors.Is(err, rights.ErrFull) {
		t.Errorf("two thousand logins within minutes: %v", err)
	}
}

// TestProviders: a provider's users are logged out when the provider changes, and its roles stay.
func TestProviders(t *testing.T) {
	s, _, text, err := login(people(t), "user/jane@corp", 1, "viewer")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func() (*rights.Set, error){
		"set":    func() (*rights.Set, error) { return s.SetProvider(&nusav1.AuthProvider{Name: "corp"}) },
		"remove": func() (*rights.Set, error) { return s.RemoveProvider("corp") },
	} {
		next, err := change()
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := next.Token(text, noon); err == nil {
			t.Errorf("%s: jane is still logged in", name)
		}
	}
	if next, err := s.SetProvider(&nusav1.AuthProvider{Name: "other-corp"}); err != nil {
		t.Error(err)
	} else if _, _, err := next.Token(text, noon); err != nil {
		t.Errorf("the change of another provider: %v", err)
	}
	for name, err := range map[string]error{
		"a role that does not exist": second(s.SetProvider(&nusav1.AuthProvider{Name: "x", Rules: []*nusav1.ProviderRule{{Role: "none"}}})),
		"a bad name":                 second(s.SetProvider(&nusav1.AuthProvider{Name: "x@y"})),
		"a token's role": func() error {
			_, _, _, err := s.CreateToken(rights.NewToken{Request: &nusav1.CreateAccessTokenRequest{Roles: []string{"none"}}})
			return err
		}(),
	} {
		if !errors.Is(err, rights.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	role := &nusav1.AuthRole{Name: "mine", Rules: []*nusav1.AuthRule{{Allow: true, Verbs: []string{"read"}, Kinds: []string{"job"}}}}
	if s, err = s.SetRole(role, rights.Change{}); err == nil {
		s, err = s.SetProvider(&nusav1.AuthProvider{Name: "corp", Rules: []*nusav1.ProviderRule{{Role: "mine"}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.RemoveRole("mine"); !errors.Is(err, rights.ErrInUse) {
		t.Errorf("the role of a provider is removed: %v", err)
	}
}

func second(_ *rights.Set, err error) error { return err }
