package rights_test

import (
	"context"
	"errors"
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

// noProcess is a condition: no task is a process.
const noProcess = `job.groups.all(g, g.tasks.all(t, t.driver != "process"))`

// policy has the role deployer with a condition, bound to operator/jane.
func policy(t *testing.T) *rights.Set {
	t.Helper()
	set, err := rights.New(nil)
	if err == nil {
		set, err = set.SetRole(&nusav1.AuthRole{Name: "deployer", Rules: []*nusav1.AuthRule{
			{Allow: true, Verbs: []string{"submit", "plan"}, Kinds: []string{"job"}, Condition: noProcess},
			{Allow: true, Verbs: []string{"stop"}, Kinds: []string{"job"}, Condition: `request.name.startsWith("jane-")`},
		}}, rights.Change{})
	}
	if err == nil {
		set, err = set.SetBinding(binding("jane", "deployer", "operator/jane"), rights.Change{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// submit submits a job with one task of a driver.
func submit(ctx context.Context, set *rights.Set, namespace, driver string, asked *rights.Asked) error {
	spec := &nusav1.JobSpec{Namespace: namespace, Groups: map[string]*nusav1.Group{"g": {Tasks: map[string]*nusav1.Task{"t": {Driver: driver}}}}}
	raw, err := proto.Marshal(spec)
	if err != nil {
		return err
	}
	return rights.Submit(ctx, func() *rights.Set { return set }, rights.Submission{Namespace: namespace, Name: "web", Encoded: raw, Asked: asked})
}

// TestConditionsOfRoles: a condition decides a submit by its job, and another call by its name. Without
// a job the answer depends on the job.
func TestConditionsOfRoles(t *testing.T) {
	set := policy(t)
	as := func(verb string) (context.Context, *rights.Call) {
		c := &rights.Call{Set: set, Who: set.Operator("jane"), Verb: verb, Kind: "job"}
		return rights.With(t.Context(), c), c
	}
	ctx, _ := as("submit")
	docker, process := &rights.Asked{}, &rights.Asked{}
	for range 2 {
		if err := submit(ctx, set, "pay", "docker", docker); err != nil {
			t.Error(err)
		}
		if err := submit(ctx, set, "pay", "process", process); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "no rule allows this") {
			t.Errorf("a process: %v", err)
		}
	}
	_, stop := as("stop")
	if err := stop.Check("pay", "", "jane-1"); err != nil {
		t.Error(err)
	}
	if err := stop.Check("pay", "", "joe-1"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the job of another: %v", err)
	}
	for verb, depends := range map[string]bool{"submit": true, "stop": false} {
		resp, err := set.CanI(t.Context(), &nusav1.CanIRequest{Verb: verb, Kind: "job", Namespace: "pay", Name: "joe-1", As: "operator/jane"})
		if err != nil || resp.GetAllowed() || resp.GetDepends() != depends {
			t.Errorf("can-i %s: %v, %v", verb, resp, err)
		}
	}
	if n := len(set.Message().GetRoles()); n != 0 || len(set.Message().GetConditionalRoles()) != 1 {
		t.Errorf("a server of an earlier version would read %d roles without their conditions", n)
	}
}

// TestConditionsOfLists: a call on all namespaces, regions or names also reaches the ones that a condition
// leaves out. So a rule that allows does not match such a call, and a rule that denies does.
func TestConditionsOfLists(t *testing.T) {
	for condition, one := range map[string]authz.Action{
		`request.namespace != "pay"`:                         {Namespace: "web"},
		`!(request.namespace in ["pay"])`:                    {Namespace: "web"},
		`[request].all(r, r.namespace != "pay")`:             {Namespace: "web", Region: "eu", Name: "x"},
		`request.region != "eu"`:                             {Region: "us"},
		`!request.name.startsWith("secret")`:                 {Name: "web"},
		`request.namespace != "pay" && request.name != "x"`:  {Namespace: "web", Name: "api"},
		`request.verb == "read" && request.principal != "x"`: {},
	} {
		for _, allow := range []bool{true, false} {
			rule := &nusav1.AuthRule{Allow: allow, Verbs: []string{"read"}, Kinds: []string{"job"}, Condition: condition}
			rules := []*nusav1.AuthRule{rule}
			if !allow {
				rule.Condition = "!(" + condition + ")"
				rules = append(rules, &nusav1.AuthRule{Allow: true, Verbs: []string{"read"}, Kinds: []string{"job"}})
			}
			set, err := rights.New(nil)
			if err == nil {
				set, err = set.SetRole(&nusav1.AuthRole{Name: "r", Rules: rules}, rights.Change{})
			}
			if err == nil {
				set, err = set.SetBinding(binding("jane", "r", "operator/jane"), rights.Change{})
			}
			if err != nil {
				t.Fatal(err)
			}
			one.Verb, one.Kind = "read", "job"
			if !set.Allowed(set.Operator("jane"), one) {
				t.Errorf("%s, allow %t: %v is denied: %s", condition, allow, one, set.Decide(set.Operator("jane"), one).Reason)
			}
			all := authz.Action{Verb: "read", Kind: "job"}
			if got := set.Allowed(set.Operator("jane"), all); got != (one.Namespace+one.Region+one.Name == "") {
				t.Errorf("%s, allow %t: a list of all jobs: %t", condition, allow, got)
			}
		}
	}
}

// TestRefusedConditions: a condition must compile, and a rule whose condition reads the job is for
// submits and plans alone.
func TestRefusedConditions(t *testing.T) {
	set := policy(t)
	for condition, verb := range map[string]string{"1 +": "submit", "request.name": "submit", noProcess: "read", noProcess + " ": "*"} {
		_, err := set.SetRole(&nusav1.AuthRole{Name: "r", Rules: []*nusav1.AuthRule{{Verbs: []string{verb}, Kinds: []string{"job"}, Condition: condition}}}, rights.Change{})
		if !errors.Is(err, rights.ErrInvalid) || !strings.Contains(err.Error(), "rule 1") {
			t.Errorf("%s for %s: %v", condition, verb, err)
		}
	}
	// A role that loses its conditions is among the others again.
	next, err := set.SetRole(&nusav1.AuthRole{Name: "deployer", Rules: []*nusav1.AuthRule{{Verbs: []string{"read"}, Kinds: []string{"job"}}}}, rights.Change{})
	if err != nil || len(next.Message().GetConditionalRoles()) > 0 || len(next.Message().GetRoles()) != 1 {
		t.Errorf("%v, %v", next.Message(), err)
	}
}

// TestLimitsOfNamespaces: a submit beyond the limits of its namespace is refused with all problems,
// also on a server without identities, until the limits change.
func TestLimitsOfNamespaces(t *testing.T) {
	set := policy(t)
	limited, err := set.SetNamespace(&nusav1.Namespace{Name: "pay", Drivers: []string{"docker"}})
	if err != nil {
		t.Fatal(err)
	}
	asked := &rights.Asked{}
	for range 2 {
		if err := submit(t.Context(), limited, "pay", "process", asked); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "not allowed in namespace pay") {
			t.Error(err)
		}
	}
	wider, err := limited.SetNamespace(&nusav1.Namespace{Name: "pay", Drivers: []string{"docker", "process"}})
	if err == nil {
		err = submit(t.Context(), wider, "pay", "process", asked)
	}
	if err == nil {
		err = submit(t.Context(), limited, "other", "process", &rights.Asked{})
	}
	if err != nil {
		t.Error(err)
	}
	if err := submit(t.Context(), nil, "pay", "process", asked); status.Code(err) != codes.Unavailable {
		t.Errorf("a server that cannot read the limits: %v", err)
	}
	for _, change := range []func() (*rights.Set, error){
		func() (*rights.Set, error) { return set.RemoveNamespace("pay") },
		func() (*rights.Set, error) { return set.SetNamespace(&nusav1.Namespace{Name: "A"}) },
		func() (*rights.Set, error) { return set.SetNamespace(nil) },
	} {
		if _, err := change(); !errors.Is(err, rights.ErrUnknown) && !errors.Is(err, rights.ErrInvalid) {
			t.Error(err)
		}
	}
}

// TestARegionThatAwaits: operators have no roles in a region that has not received a set. The tokens of
// the region alone and the administrator of the machine have theirs.
func TestARegionThatAwaits(t *testing.T) {
	a := authz.Action{Verb: "stop", Kind: "job"}
	waiting, err := rights.OfRegion(rights.Region{Awaits: true})
	if err != nil {
		t.Fatal(err)
	}
	if d := waiting.Decide(waiting.Operator("jane"), a); d.Allowed || waiting.Unbound() || !strings.Contains(d.Reason, "has not received") {
		t.Errorf("%+v", d)
	}
	if waiting.Allowed(waiting.Operator("root"), a) || !waiting.Allowed(waiting.Root(), a) || waiting.Allowed(waiting.Operator("root"), a) {
		t.Error("only the administrator of the machine has the role admin")
	}
	n := rights.NewToken{Request: &nusav1.CreateAccessTokenRequest{Roles: []string{"operator"}, Local: true}, By: "operator/root", Now: time.Unix(1e6, 0)}
	local, made, text, err := rights.CreateLocalToken(waiting, nil, n)
	if err != nil || !made.GetLocal() || len(made.GetHash()) > 0 {
		t.Fatalf("%v, %v", made, err)
	}
	island, err := rights.OfRegion(rights.Region{Awaits: true, Local: local})
	if err != nil {
		t.Fatal(err)
	}
	who, _, err := island.Token(text, n.Now)
	if err != nil || !island.Allowed(who, a) || island.Allowed(who, authz.Action{Verb: "set", Kind: "role"}) {
		t.Errorf("%v, %v", who, err)
	}
	if _, _, err := waiting.Token(text, n.Now); !errors.Is(err, rights.ErrToken) {
		t.Errorf("another region: %v", err)
	}
	if rest, err := rights.RevokeLocalToken(local, made.GetAccessor()); err != nil || len(rest.GetTokens()) > 0 {
		t.Errorf("%v, %v", rest, err)
	}
	if _, err := rights.RevokeLocalToken(local, "x"); !errors.Is(err, rights.ErrUnknown) {
		t.Error(err)
	}
	for _, bad := range []*nusav1.CreateAccessTokenRequest{{Roles: []string{"none"}}, {Ttl: durationpb.New(91 * 24 * time.Hour)}} {
		n.Request = bad
		if _, _, _, err := rights.CreateLocalToken(waiting, local, n); !errors.Is(err, rights.ErrInvalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	n.Request = &nusav1.CreateAccessTokenRequest{}
	for i := 0; err == nil; i++ {
		n.Random[0], n.Random[1] = byte(i), 1
		local, _, _, err = rights.CreateLocalToken(waiting, local, n)
	}
	if !errors.Is(err, rights.ErrFull) {
		t.Error(err)
	}
}

// BenchmarkSubmit is the whole decision of a submit, in a namespace without limits and in one with.
func BenchmarkSubmit(b *testing.B) {
	set, err := rights.New(&nusav1.AuthSet{
		Bindings:   []*nusav1.AuthBinding{{Name: "x", Role: "submitter", Subjects: []string{"operator/jane"}, Namespaces: []string{"pay*"}}},
		Namespaces: []*nusav1.Namespace{{Name: "pay-limited", Drivers: []string{"docker"}}},
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx := rights.With(b.Context(), &rights.Call{Set: set, Who: set.Operator("jane"), Verb: "submit", Kind: "job"})
	for _, namespace := range []string{"pay", "pay-limited"} {
		b.Run(namespace, func(b *testing.B) {
			s := rights.Submission{Namespace: namespace, Name: "api", Asked: &rights.Asked{}}
			b.ReportAllocs()
			for b.Loop() {
				if err := rights.Submit(ctx, nil, s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
