package member_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/member"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TestReplacement: once a member is removed, another machine gets its name at once, and the old machine
// is refused until it joins with a new token.
func TestReplacement(t *testing.T) {
	ca := pkitest.New(t)
	for name, c := range map[string]struct {
		at, member string
		token      *nusav1.CreateTokenRequest
		remove     func(*tier) error
	}{
		"an agent": {"region/a/server/s1", "region/a/agent/gpu-1", agents(func(r *nusav1.CreateTokenRequest) { r.Uses = 9 }), func(x *tier) error {
			removed, err := x.Members().Remove(t.Context(), "gpu-1")
			if !removed {
				t.Error("nothing was removed")
			}
			return err
		}},
		"a regional server": {"global/g1", "region/a/server/s1", &nusav1.CreateTokenRequest{Role: "server", Region: "a", Uses: 9}, func(x *tier) error {
			return x.Members().RemoveServer(t.Context(), "a", "s1")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			x := start(t, ca, c.at)
			token := x.token(c.token)
			dead, next := x.config(c.member, token), x.config(c.member, token)
			if err := x.ensure(dead); err != nil {
				t.Fatal(err)
			}
			if err := x.ensure(next); err == nil || !strings.Contains(err.Error(), "another machine has the name") {
				t.Fatalf("another machine has joined: %v", err)
			}
			if err := c.remove(x); err != nil {
				t.Fatal(err)
			}
			if err := x.ensure(next); err != nil {
				t.Fatalf("the new machine: %v", err)
			}
			if _, err := dead.Renew()(t.Context(), member.Renewal{}); err == nil || !strings.Contains(err.Error(), "was removed at") {
				t.Errorf("the old machine renews: %v", err)
			}
			if list, err := x.Members().List(t.Context(), &nusav1.ListMembersRequest{}); err != nil || len(list.GetMembers()) != 1 || len(list.GetRemoved()) != 1 {
				t.Errorf("%v, %v", list, err)
			}
			if e := x.store.entries; e[2] != "remove member "+c.member || !strings.HasPrefix(e[3], "join ") {
				t.Errorf("the audit trail has %q", e)
			}
			read := 0
			dead.Token = func() (join.Token, error) { // a token in the environment can be read once
				if read++; read > 1 {
					return join.Token{}, nil
				}
				return token, nil
			}
			// With a token the old machine asks whether it is still a member. The name is another's now.
			dead.TokenGiven = true
			if err := x.ensure(dead); err == nil || !strings.Contains(err.Error(), "another machine has the name") {
				t.Errorf("the old machine took the name back: %v", err)
			}
			if err := c.remove(x); err != nil {
				t.Fatal(err)
			}
			read = 0
			if err := x.ensure(dead); err != nil {
				t.Errorf("the old machine cannot join again: %v", err)
			}
			if _, err := dead.Renew()(t.Context(), member.Renewal{}); err != nil {
				t.Errorf("the old machine has joined with the refused key: %v", err)
			}
		})
	}
}

// TestRemovedKeys: a server of a region refuses the key of a removed server that the global tier names,
// and nobody else names keys.
func TestRemovedKeys(t *testing.T) {
	ca := pkitest.New(t)
	x := start(t, ca, "region/a/server/s1")
	if removed, err := x.Members().Remove(t.Context(), "gpu-1"); removed || err != nil {
		t.Errorf("an unknown agent: %v, %v", removed, err)
	}
	if _, err := start(t, ca, "global/g1").Members().ServerToRemove(t.Context(), "a", "s1"); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown server: %v", err)
	}
	key := make([]byte, 32)
	key[0] = 1
	req := &nusav1.RemoveServerRequest{Region: "a", Name: "s2", Key: key}
	for who, want := range map[string]codes.Code{"": codes.FailedPrecondition, "operator/jane": codes.FailedPrecondition, "global/g1": codes.OK} {
		ctx := t.Context()
		if who != "" {
			ctx = trust.WithCaller(ctx, ca.ID(who))
		}
		if err := x.Members().RefuseServer(ctx, req); status.Code(err) != want {
			t.Errorf("%q: %v, want %s", who, err, want)
		}
	}
	if _, version, _ := x.store.Get(t.Context(), enroll.RemovedKey(join.Hash(key))); version == 0 {
		t.Error("the key is not refused")
	}
	if err := x.Members().RefuseServer(trust.WithCaller(t.Context(), ca.ID("global/g1")), &nusav1.RemoveServerRequest{Region: "b", Name: "s2", Key: key}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("another region: %v", err)
	}
}

// TestRecordsOfMembersAreBounded: a join removes the records of members that can no longer renew, and
// those of removed members after their time.
func TestRecordsOfMembersAreBounded(t *testing.T) {
	x := start(t, pkitest.New(t), "region/a/server/s1")
	many := agents(func(r *nusav1.CreateTokenRequest) { r.Uses, r.Pool = 1000, "" })
	token := x.token(many)
	for _, name := range []string{"gpu-1", "gpu-2", "gpu-3"} {
		if err := x.ensure(x.config("region/a/agent/"+name, token)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := x.Members().Remove(t.Context(), "gpu-1"); err != nil {
		t.Fatal(err)
	}
	names := func() string {
		list, err := x.Members().List(t.Context(), &nusav1.ListMembersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, m := range list.GetMembers() {
			out = append(out, m.GetName())
		}
		for _, m := range list.GetRemoved() {
			out = append(out, "removed "+m.GetName())
		}
		slices.Sort(out)
		return strings.Join(out, ", ")
	}
	for _, step := range []struct {
		ahead  time.Duration
		joins  string
		expect string
	}{
		{30 * 24 * time.Hour, "gpu-4", "gpu-2, gpu-3, gpu-4, removed gpu-1"},
		{32 * 24 * time.Hour, "gpu-5", "gpu-4, gpu-5"},
	} {
		x.ahead(step.ahead)
		c := x.config("region/a/agent/"+step.joins, x.token(many))
		if err := member.Ensure(t.Context(), c); err == nil || !strings.Contains(err.Error(), "certificate of the future") {
			t.Fatal(err) // the server has issued the certificate; the clock of this process is behind
		}
		if got := names(); got != step.expect {
			t.Errorf("after %s: %s, want %s", step.ahead, got, step.expect)
		}
	}
}

// TestBrokenAuthority: after a crash between the two files of its authority a server asks for another
// one at its next start.
func TestBrokenAuthority(t *testing.T) {
	ca := pkitest.New(t)
	x := start(t, ca, "global/g1")
	c := x.config("region/a/server/s1", x.token(&nusav1.CreateTokenRequest{Role: "server", Region: "a"}))
	if err := x.ensure(c); err != nil {
		t.Fatal(err)
	}
	other := x.config("region/a/server/s2", x.token(&nusav1.CreateTokenRequest{Role: "server", Region: "a"}))
	if err := x.ensure(other); err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(other.Dir, "authority", trust.KeyFile))
	if err == nil {
		err = os.WriteFile(filepath.Join(c.Dir, "authority", trust.KeyFile), key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if a, err := enroll.ReadAuthority(c.Dir); err == nil {
		t.Fatalf("the files do not fit, and are read as %v", a.ID)
	}
	servers := c.Servers
	c.Servers = []string{"127.0.0.1:1"}
	if err := x.ensure(c); err != nil { // the region works on without the global tier
		t.Fatal(err)
	}
	c.Servers = servers
	if err := x.ensure(c); err != nil {
		t.Fatal(err)
	}
	if a, err := enroll.ReadAuthority(c.Dir); err != nil || a.ID.Kind != identity.Region {
		t.Errorf("%v, %v", a, err)
	}
}
