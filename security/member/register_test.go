package member_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/member"
	"github.com/nusa-scheduler/nusa/security/pkitest"
)

func fleet(n int) []*nusav1.RegisteredNode {
	var out []*nusav1.RegisteredNode
	for i := range n {
		out = append(out, &nusav1.RegisteredNode{Name: fmt.Sprintf("n%04d", i), Pool: "gpu", Labels: map[string]string{"rack": "r1"}, Priority: 50})
	}
	return out
}

// TestRegister: 2,000 nodes are registered by one call, all or none.
func TestRegister(t *testing.T) {
	x := start(t, pkitest.New(t), "region/a/server/s1")
	other, bad, twice := fleet(2), fleet(2), fleet(2)
	other[1].Pool, bad[1].Address, twice[1].Name = "web", "10.0.0", twice[0].Name
	for _, c := range []struct {
		what    string
		req     *nusav1.RegisterRequest
		changed int32
		want    codes.Code
		text    string
	}{
		{"a fleet", &nusav1.RegisterRequest{Region: "a", Nodes: fleet(2000)}, 2000, codes.OK, ""},
		{"the same", &nusav1.RegisterRequest{Region: "a", Nodes: fleet(2000)}, 0, codes.OK, ""},
		{"other values", &nusav1.RegisterRequest{Region: "a", Nodes: other}, 0, codes.AlreadyExists, "node n0001 is registered with other values"},
		{"other values in place", &nusav1.RegisterRequest{Region: "a", Nodes: other, Replace: true}, 1, codes.OK, ""},
		{"too many", &nusav1.RegisterRequest{Region: "a", Nodes: fleet(2001)}, 0, codes.InvalidArgument, "a call may have 1 to 2000"},
		{"none", &nusav1.RegisterRequest{Region: "a"}, 0, codes.InvalidArgument, "0 nodes"},
		{"another region", &nusav1.RegisterRequest{Region: "b", Nodes: fleet(1)}, 0, codes.InvalidArgument, "this is a server of region a"},
		{"a bad address", &nusav1.RegisterRequest{Region: "a", Nodes: bad}, 0, codes.InvalidArgument, "10.0.0"},
		{"a node twice", &nusav1.RegisterRequest{Region: "a", Nodes: twice}, 0, codes.InvalidArgument, "is there twice"},
		{"a bad label", &nusav1.RegisterRequest{Region: "a", Nodes: []*nusav1.RegisteredNode{{Name: "x", Labels: map[string]string{"": "v"}}}}, 0, codes.InvalidArgument, "labels"},
		{"a bad name", &nusav1.RegisterRequest{Region: "a", Nodes: []*nusav1.RegisteredNode{{Name: "../x"}}}, 0, codes.InvalidArgument, "name"},
	} {
		out, err := x.Members().Register(t.Context(), c.req)
		if status.Code(err) != c.want || out.GetChanged() != c.changed || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, %v, want %d, %s %q", c.what, out, err, c.changed, c.want, c.text)
		}
	}
	list, err := x.Members().List(t.Context(), &nusav1.ListMembersRequest{})
	if err != nil || len(list.GetNodes()) != 2000 || list.GetNodes()[0].GetRegion() != "a" {
		t.Errorf("%d nodes, %v", len(list.GetNodes()), err)
	}
	for _, want := range []int32{2, 0} {
		out, err := x.Members().Unregister(t.Context(), &nusav1.UnregisterRequest{Region: "a", Names: []string{"n0001", "n0002", "n0002", "never"}})
		if err != nil || out.GetChanged() != want {
			t.Errorf("%v, %v, want %d", out, err, want)
		}
	}
	if e := x.store.entries; len(e) != 3 || e[0] != "register node n0000" || e[2] != "register node n0001" {
		t.Errorf("the audit trail has %q", e)
	}
}

// TestPolicies: what an agent needs to join follows the policy, which the next join reads.
func TestPolicies(t *testing.T) {
	ca := pkitest.New(t)
	x := start(t, ca, "region/a/server/s1")
	get := func() *nusav1.JoinPolicy {
		p, err := x.Members().GetPolicy(t.Context(), &nusav1.GetJoinPolicyRequest{Region: "a"})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := get()
	root, err := join.ParseRoot(first.GetRootHash())
	if first.GetPolicy() != "token" || first.GetGrace().AsDuration() != join.DefaultGrace || err != nil {
		t.Errorf("at first: %v, %v", first, err)
	}
	without := func(name string, root join.Root) error {
		c := x.config("region/a/agent/"+name, join.Token{})
		c.Root = root
		limit := time.Minute
		if name == "n2" { // another root is no final answer
			limit = 3 * time.Second
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return member.Ensure(ctx, c)
	}
	if _, err := x.Members().Register(t.Context(), &nusav1.RegisterRequest{Region: "a", Nodes: []*nusav1.RegisteredNode{{Name: "r1", Address: "127.0.0.1", Pool: "gpu"}, {Name: "r2", Address: "10.0.0.9"}}}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ policy, name, want string }{
		{"token", "r1", "needs a join token"},
		{"registered", "n1", "is not registered"},
		{"registered", "r2", "joins from 127.0.0.1, and is registered with 10.0.0.9"},
		{"registered", "r1", ""},
		{"token+registered", "r2", "needs a join token"},
		{"open", "n1", ""},
		{"open", "r2", "is registered with 10.0.0.9"},
	} {
		if p, err := x.Members().SetPolicy(t.Context(), &nusav1.SetJoinPolicyRequest{Region: "a", Policy: step.policy}); err != nil || p.GetPolicy() != step.policy {
			t.Fatalf("%v, %v", p, err)
		}
		err := without(step.name, root)
		if (err == nil) != (step.want == "") || err != nil && !strings.Contains(err.Error(), step.want) {
			t.Errorf("%s, policy %s: %v, want %q", step.name, step.policy, err, step.want)
		}
	}
	other, err := join.ParseRoot(strings.Repeat("ab", 32))
	if err != nil {
		t.Fatal(err)
	}
	if err := without("n2", other); err == nil || !strings.Contains(err.Error(), "not the one of --root-hash") {
		t.Errorf("another root: %v", err)
	}
	p, err := x.Members().SetPolicy(t.Context(), &nusav1.SetJoinPolicyRequest{Region: "a", Grace: durationpb.New(time.Hour), Require: proto.String("node.memory_mib > 1")})
	if err != nil || p.GetPolicy() != "open" || p.GetGrace().AsDuration() != time.Hour || p.GetRequire() == "" || !proto.Equal(p, get()) {
		t.Errorf("%v, %v", p, err)
	}
	p, err = x.Members().SetPolicy(t.Context(), &nusav1.SetJoinPolicyRequest{Region: "a", Require: proto.String("")})
	if err != nil || p.GetRequire() != "" || p.GetGrace().AsDuration() != time.Hour {
		t.Errorf("%v, %v", p, err)
	}
	for _, bad := range []*nusav1.SetJoinPolicyRequest{{Region: "a", Policy: "x"}, {Region: "b"}, {Region: "a", Grace: durationpb.New(-1)}, {Region: "a", Grace: durationpb.New(366 * 24 * time.Hour)}} {
		if _, err := x.Members().SetPolicy(t.Context(), bad); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", bad, err)
		}
	}
}
