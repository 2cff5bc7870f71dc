package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/pkitest"
)

// refusedWith returns an error unless err has a code and a text.
func refusedWith(err error, code codes.Code, text string) error {
	if status.Code(err) == code && strings.Contains(err.Error(), text) {
		return nil
	}
	return fmt.Errorf("%v, want %s: %s", err, code, text)
}

// jobOf returns a job of one task that asks for the driver mock.
func jobOf(t *testing.T, namespace, name string) *nusav1.JobSpec {
	t.Helper()
	spec, err := job.Parse([]byte("name: "+name+"\nnamespace: "+namespace+"\ngroups: {g: {tasks: {t: {driver: mock, config: {}}}}}\n"), "job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// TestPolicyTravels: a region that has never reached the global tier lets operators with certificates
// do nothing, and does so by the federation's policy once it has that, also without the global tier.
func TestPolicyTravels(t *testing.T) {
	f := &federation{t: t, ca: pkitest.New(t), port: freeport.Reserve(t, 60), mem: store.NewMemory(), log: slog.New(slog.DiscardHandler), trails: t.TempDir()}
	f.server("b", 0, 1, portB)
	region := f.as("operator/jane", portB)
	f.eventually("operators may do nothing before the first policy", func(ctx context.Context) error {
		_, err := nusav1.NewJobsClient(region).List(ctx, &nusav1.ListJobsRequest{})
		return refusedWith(err, codes.PermissionDenied, "has not received from the global tier who may do what")
	})
	_, err := nusav1.NewAuthClient(region).CreateAccessToken(t.Context(), &nusav1.CreateAccessTokenRequest{Roles: []string{"admin"}, Local: true})
	if refusedWith(err, codes.PermissionDenied, "") != nil {
		t.Fatal(err)
	}
	f.global("g1", portGlobal)
	f.eventually("the region has the empty policy", func(ctx context.Context) error {
		_, err := nusav1.NewJobsClient(region).List(ctx, &nusav1.ListJobsRequest{})
		return err
	})
	both := map[string]*grpc.ClientConn{"the global tier": f.as("operator/jane", portGlobal), "the region": region}
	t.Run("namespaces", func(t *testing.T) { f.limits(t, both) })
	t.Run("conditions and streams", func(t *testing.T) { f.conditions(t) })
	t.Run("a token of one region", func(t *testing.T) { f.localToken(t) })
}

// limits: both tiers refuse what a namespace forbids, in a submit and in a plan, until the limits are removed.
func (f *federation) limits(t *testing.T, both map[string]*grpc.ClientConn) {
	ctx := t.Context()
	global := nusav1.NewNamespacesClient(both["the global tier"])
	if _, err := global.Set(ctx, &nusav1.SetNamespaceRequest{Namespace: &nusav1.Namespace{Name: "pay", Drivers: []string{"docker"}}}); err != nil {
		t.Fatal(err)
	}
	if err := refusedWith(func() error {
		_, err := nusav1.NewNamespacesClient(both["the region"]).Remove(ctx, &nusav1.RemoveNamespaceRequest{Name: "pay"})
		return err
	}(), codes.FailedPrecondition, "global tier"); err != nil {
		t.Error(err)
	}
	for tier, conn := range both {
		jobs := nusav1.NewJobsClient(conn)
		f.eventually(tier+" has the limits", func(ctx context.Context) error {
			_, err := nusav1.NewNamespacesClient(conn).Get(ctx, &nusav1.GetNamespaceRequest{Name: "pay"})
			return err
		})
		_, err := jobs.Submit(ctx, &nusav1.SubmitRequest{Spec: jobOf(t, "pay", "x")})
		_, planErr := jobs.Plan(ctx, &nusav1.PlanRequest{Spec: jobOf(t, "pay", "x")})
		for _, err := range []error{err, planErr} {
			if refusedWith(err, codes.InvalidArgument, "groups.g.tasks.t.driver: not allowed in namespace pay: its jobs may not use the driver mock") != nil || len(rpcerr.Problems(err)) != 1 {
				t.Errorf("%s: %v", tier, err)
			}
		}
		if _, err := jobs.Submit(ctx, &nusav1.SubmitRequest{Spec: jobOf(t, "other", "x")}); err != nil {
			t.Errorf("%s, another namespace: %v", tier, err)
		}
	}
	if _, err := global.Remove(ctx, &nusav1.RemoveNamespaceRequest{Name: "pay"}); err != nil {
		t.Fatal(err)
	}
	for tier, conn := range both {
		f.eventually(tier+" has no limits any more", func(ctx context.Context) error {
			_, err := nusav1.NewJobsClient(conn).Submit(ctx, &nusav1.SubmitRequest{Spec: jobOf(t, "pay", "x")})
			return err
		})
	}
}

// conditions: a role whose condition reads the job decides submits at both tiers. A watch in the region
// ends soon after its right has ended.
func (f *federation) conditions(t *testing.T) {
	ctx := t.Context()
	auth := nusav1.NewAuthClient(f.as("operator/jane", portGlobal))
	bind := func(name, role, subject string) {
		t.Helper()
		if _, err := auth.SetBinding(ctx, &nusav1.SetBindingRequest{Binding: &nusav1.AuthBinding{Name: name, Role: role, Subjects: []string{subject}}}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := auth.SetRole(ctx, &nusav1.SetRoleRequest{Role: &nusav1.AuthRole{Name: "small", Rules: []*nusav1.AuthRule{
		{Allow: true, Verbs: []string{"submit"}, Kinds: []string{"job"}, Condition: "job.groups.size() == 1 && !job.name.startsWith('big')"},
		{Allow: true, Verbs: []string{"read"}, Kinds: []string{"job"}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	bind("admins", "admin", "operator/jane")
	bind("joe", "small", "operator/joe")
	for _, port := range []int{portGlobal, portB} {
		joe := nusav1.NewJobsClient(f.as("operator/joe", port))
		f.eventually("a small job", func(ctx context.Context) error {
			_, err := joe.Submit(ctx, &nusav1.SubmitRequest{Spec: jobOf(t, "pay", "small")})
			return err
		})
		if _, err := joe.Submit(ctx, &nusav1.SubmitRequest{Spec: jobOf(t, "pay", "big")}); refusedWith(err, codes.PermissionDenied, "operator/joe may not submit job big in namespace pay") != nil {
			t.Error(err)
		}
	}
	for _, port := range []int{portGlobal, portB} { // the region keeps the versions of its own jobs
		revert := &nusav1.RevertJobRequest{Job: &nusav1.JobRef{Namespace: "pay", Name: "small", Region: "b"}}
		_, err := nusav1.NewRolloutsClient(f.as("operator/joe", port)).Revert(ctx, revert)
		if refusedWith(err, codes.NotFound, "no stored version before 1") != nil {
			t.Error(err)
		}
		_, err = nusav1.NewRolloutsClient(f.as("operator/kim", port)).Revert(ctx, revert)
		if refusedWith(err, codes.PermissionDenied, "operator/kim may not submit job") != nil {
			t.Error(err)
		}
	}
	watch, err := nusav1.NewJobsClient(f.as("operator/joe", portB)).Watch(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: "pay", Name: "small", Region: "b"}})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := auth.RemoveBinding(ctx, &nusav1.RemoveBindingRequest{Name: "joe"}); err != nil {
		t.Fatal(err)
	}
	f.hashed(t)
	begun := time.Now()
	for err == nil {
		_, err = watch.Recv()
	}
	if refusedWith(err, codes.PermissionDenied, "the right to this ended") != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("the watch ended after %s", took)
	}
}

// hashed: the trail has hashes of what a change of rights changes.
func (f *federation) hashed(t *testing.T) {
	trail, err := nusav1.NewAuditClient(f.as("operator/jane", portGlobal)).List(t.Context(), &nusav1.ListAuditRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range trail.GetEntries() {
		got[e.GetVerb()+" "+e.GetKind()+" "+e.GetName()] += fmt.Sprint(len(e.GetBefore()), len(e.GetAfter()))
	}
	for what, want := range map[string]string{"set role small": "0 32", "set binding joe": "0 32", "remove binding joe": "32 0", "set namespace pay": "0 32", "remove namespace pay": "32 0"} {
		if got[what] != want {
			t.Errorf("%s has hashes of %s bytes, want %s", what, got[what], want)
		}
	}
}

// localToken: a region makes a token of its own, which works there without the global tier, and nowhere
// else.
func (f *federation) localToken(t *testing.T) {
	ctx := t.Context()
	create := &nusav1.CreateAccessTokenRequest{Roles: []string{"operator"}, Local: true}
	if _, err := nusav1.NewAuthClient(f.as("operator/jane", portGlobal)).CreateAccessToken(ctx, create); refusedWith(err, codes.FailedPrecondition, "--addr") != nil {
		t.Error(err)
	}
	region := nusav1.NewAuthClient(f.as("operator/jane", portB))
	made, err := region.CreateAccessToken(ctx, create)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nusav1.NewAuthClient(f.with(made.GetSecret(), "operator/joe", portGlobal)).WhoAmI(ctx, &nusav1.WhoAmIRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("at the global tier: %v", err)
	}
	for _, stop := range f.globals {
		stop()
	}
	local := f.with(made.GetSecret(), "operator/joe", portB)
	f.eventually("the token works without the global tier", func(ctx context.Context) error {
		_, err := nusav1.NewJobsClient(local).Stop(ctx, &nusav1.StopJobRequest{Job: &nusav1.JobRef{Namespace: "pay", Name: "small", Region: "b"}})
		return err
	})
	if _, err := nusav1.NewAuthClient(local).CreateAccessToken(ctx, create); refusedWith(err, codes.PermissionDenied, "may not create token") != nil {
		t.Error(err)
	}
	list, err := region.ListAccessTokens(ctx, &nusav1.ListAccessTokensRequest{})
	if err != nil || len(list.GetTokens()) != 1 || !list.GetTokens()[0].GetLocal() {
		t.Errorf("%v, %v", list, err)
	}
	for want, accessor := range map[codes.Code]string{codes.OK: made.GetToken().GetAccessor(), codes.NotFound: "x"} {
		if _, err := region.RevokeAccessToken(ctx, &nusav1.RevokeAccessTokenRequest{Accessor: accessor}); status.Code(err) != want {
			t.Errorf("revoke %s: %v", accessor, err)
		}
	}
	if _, err := nusav1.NewJobsClient(local).List(ctx, &nusav1.ListJobsRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a revoked token: %v", err)
	}
	trail, err := nusav1.NewAuditClient(f.as("operator/jane", portB)).List(ctx, &nusav1.ListAuditRequest{})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, e := range trail.GetEntries() {
		if e.GetName() == made.GetToken().GetAccessor() && e.GetKind() == "token" && e.GetWho() == "operator/jane" {
			found++
		}
	}
	if found != 2 {
		t.Error(errors.New("the trail lacks the token's entries"), trail.GetEntries())
	}
}
