package tiers_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// bearer sends an access token with each call.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }

var _ credentials.PerRPCCredentials = bearer("")

// with returns a connection to a port with the identity of a member and an access token.
func (f *federation) with(token, member string, port int) *grpc.ClientConn {
	f.t.Helper()
	conn, err := grpc.NewClient(f.addr(port), f.ca.Source(member).Dial(identity.Rules{{Kind: identity.Global}, {Kind: identity.Server}}), grpc.WithPerRPCCredentials(bearer(token)))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	return conn
}

// attempt is a call and what the caller needs for the call.
type attempt struct {
	what string
	call func(ctx context.Context, c *grpc.ClientConn) error
}

// first returns the first message of a stream. The end of the stream is no error.
func first[T any](s grpc.ServerStreamingClient[T], err error) error {
	if err != nil {
		return err
	}
	if _, err = s.Recv(); err == io.EOF {
		return nil
	}
	return err
}

// attemptsOn are calls about an allocation of the namespace default, and about its job.
func attemptsOn(a *nusav1.Allocation) []attempt {
	ref := &nusav1.JobRef{Namespace: "default", Name: "web"}
	return []attempt{
		{"read job web", func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := nusav1.NewJobsClient(c).Get(ctx, &nusav1.GetJobRequest{Job: ref})
			return err
		}},
		{"read job web", func(ctx context.Context, c *grpc.ClientConn) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			return first(nusav1.NewJobsClient(c).Watch(ctx, &nusav1.GetJobRequest{Job: ref}))
		}},
		{"read allocation", func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := nusav1.NewAllocationsClient(c).Get(ctx, &nusav1.GetAllocationRequest{Id: a.GetId()})
			return err
		}},
		{"read allocation", func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := nusav1.NewAllocationsClient(c).Stats(ctx, &nusav1.AllocationStatsRequest{Allocation: a.GetId()})
			return err
		}},
		{"logs allocation", func(ctx context.Context, c *grpc.ClientConn) error {
			return first(nusav1.NewAllocationsClient(c).Logs(ctx, &nusav1.LogsRequest{Allocation: a.GetId(), Task: "t", Stdout: true}))
		}},
		{"exec allocation", func(ctx context.Context, c *grpc.ClientConn) error {
			s, err := nusav1.NewAllocationsClient(c).Exec(ctx)
			if err != nil {
				return err
			}
			if err := s.Send(&nusav1.ExecRequest{Start: &nusav1.ExecRequest_Start{Allocation: a.GetId(), Task: "t", Command: []string{"true"}}}); err != nil {
				return err
			}
			if err := s.CloseSend(); err != nil {
				return err
			}
			if _, err = s.Recv(); err == io.EOF {
				return nil
			}
			return err
		}},
		{"stop allocation", func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := nusav1.NewAllocationsClient(c).Stop(ctx, &nusav1.GetAllocationRequest{Id: a.GetId()})
			return err
		}},
	}
}

// overridesNameTheirCaller: an override names who set it, also over the global tier, and nobody but a global
// server can name another.
func (f *federation) overridesNameTheirCaller(t *testing.T) {
	web := &nusav1.JobRef{Namespace: "default", Name: "web"}
	for port, want := range map[int]string{portStandby: "operator/jane", portA: "operator/jane"} {
		c := nusav1.NewOverridesClient(f.as("operator/jane", port))
		f.eventually("the override is set", func(ctx context.Context) error {
			o, err := c.Set(ctx, &nusav1.SetOverrideRequest{Job: web, Region: "a", Count: 1, Caller: "operator/mallory"})
			if err == nil && o.GetBy() != want {
				t.Errorf("set by %q, want %q", o.GetBy(), want)
			}
			return err
		})
		f.instancesInA(web, 1)
		if r, err := c.Clear(t.Context(), &nusav1.ClearOverrideRequest{Job: web, Region: "a"}); err != nil || !r.GetCleared() {
			t.Errorf("clear: %v, %v", r, err)
		}
		f.instancesInA(web, 2)
	}
}

// instancesInA waits until exactly want instances of a job are to run in region a. A plan that the master made before an
// override changed may still stop an instance afterwards, so a test waits for the effect of each change.
func (f *federation) instancesInA(ref *nusav1.JobRef, want int) {
	f.t.Helper()
	jane := nusav1.NewAllocationsClient(f.as("operator/jane", portA))
	f.eventually(fmt.Sprintf("%d instances are to run in region a", want), func(ctx context.Context) error {
		r, err := jane.List(ctx, &nusav1.ListAllocationsRequest{Job: ref, All: true})
		if err != nil {
			return err
		}
		got := 0
		for _, a := range r.GetAllocations() {
			if a.GetDesired() == nusav1.AllocDesired_ALLOC_DESIRED_RUN {
				got++
			}
		}
		if got != want {
			return fmt.Errorf("%d instances", got)
		}
		return nil
	})
}

// refused returns an error unless a call of a principal was refused. A principal that may not read an
// allocation does not learn that it exists.
func refused(err error, name, what string) error {
	want, code := name+" may not "+what, codes.PermissionDenied
	if strings.HasSuffix(what, "allocation") {
		want, code = "no allocation that "+name+" may read has an id", codes.NotFound
	}
	if status.Code(err) == code && strings.Contains(err.Error(), want) {
		return nil
	}
	return fmt.Errorf("%s: %v, want %s", what, err, want)
}

// rights: operators and tokens do what their roles allow, at both servers of the global tier.
func (f *federation) rights(t *testing.T, allocs []*nusav1.Allocation) {
	ctx := t.Context()
	jane := nusav1.NewAuthClient(f.as("operator/jane", portStandby))
	bind := func(b *nusav1.AuthBinding) error {
		_, err := jane.SetBinding(ctx, &nusav1.SetBindingRequest{Binding: b})
		return err
	}
	if err := bind(&nusav1.AuthBinding{Name: "joe", Role: "submitter", Subjects: []string{"operator/joe"}, Namespaces: []string{"pay"}}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "could not change roles") {
		t.Fatalf("the first binding locks its author out: %v", err)
	}
	for _, b := range []*nusav1.AuthBinding{
		{Name: "admins", Role: "admin", Subjects: []string{"operator/jane"}},
		{Name: "pay", Role: "submitter", Subjects: []string{"operator/joe"}, Namespaces: []string{"pay"}},
		{Name: "default", Role: "submitter", Subjects: []string{"operator/ann"}, Namespaces: []string{"default"}},
	} {
		if err := bind(b); err != nil {
			t.Fatal(err)
		}
	}
	made, err := jane.CreateAccessToken(ctx, &nusav1.CreateAccessTokenRequest{Roles: []string{"submitter"}, Namespaces: []string{"pay"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range []int{portGlobal, portStandby} {
		for name, conn := range map[string]*grpc.ClientConn{
			"operator/joe": f.as("operator/joe", port), "token/" + made.GetToken().GetAccessor(): f.with(made.GetSecret(), "operator/jane", port),
		} {
			f.confined(t, name, conn, allocs)
		}
		for _, a := range attemptsOn(allocs[0])[:5] {
			if err := a.call(ctx, f.as("operator/ann", port)); err != nil {
				t.Errorf("operator/ann: %s: %v", a.what, err)
			}
		}
		if _, err := nusav1.NewRegionsClient(f.as("operator/nobody", port)).List(ctx, &nusav1.ListRegionsRequest{}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("operator/nobody: %v", err)
		}
	}
	if _, err := jane.RevokeAccessToken(ctx, &nusav1.RevokeAccessTokenRequest{Accessor: made.GetToken().GetAccessor()}); err != nil {
		t.Fatal(err)
	}
	_, err = nusav1.NewAuthClient(f.with(made.GetSecret(), "operator/jane", portStandby)).WhoAmI(ctx, &nusav1.WhoAmIRequest{})
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("a revoked token: %v", err)
	}
}

// rightsOfRegions: each region has the roles, bindings and tokens, and decides by them also without
// the global tier.
func (f *federation) rightsOfRegions(t *testing.T, allocs []*nusav1.Allocation) {
	jane := f.as("operator/jane", portGlobal)
	f.eventually("the regions have the bindings", func(ctx context.Context) error {
		me, err := nusav1.NewAuthClient(jane).WhoAmI(ctx, &nusav1.WhoAmIRequest{})
		if err != nil {
			return err
		}
		r, err := nusav1.NewRegionsClient(jane).List(ctx, &nusav1.ListRegionsRequest{})
		for _, one := range r.GetRegions() {
			if one.GetPolicyVersion() != me.GetPolicyVersion() || one.GetPolicyAge() == nil || one.GetPolicyAge().AsDuration() != 0 {
				err = fmt.Errorf("region %s has version %d of age %v, want %d", one.GetDefinition().GetName(), one.GetPolicyVersion(), one.GetPolicyAge(), me.GetPolicyVersion())
			}
		}
		return err
	})
	at := map[string]int{"a": portA, "b": portB}
	decided := func(when string) {
		for _, a := range allocs {
			port := at[a.GetRegion()]
			joe, ann := f.as("operator/joe", port), f.as("operator/ann", port)
			for _, try := range attemptsOn(a) {
				f.eventually(when+": "+try.what+" in region "+a.GetRegion(), func(ctx context.Context) error {
					return refused(try.call(ctx, joe), "operator/joe", try.what)
				})
			}
			f.eventually(when+": operator/ann", func(ctx context.Context) error { return attemptsOn(a)[2].call(ctx, ann) })
		}
	}
	decided("with the global tier")
	for _, stop := range f.globals {
		stop()
	}
	decided("without the global tier")
	_, err := nusav1.NewAuthClient(f.as("operator/jane", portB)).SetRole(t.Context(), &nusav1.SetRoleRequest{Role: &nusav1.AuthRole{Name: "x"}})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a region sets a role: %v", err)
	}
}

// confined: a submitter of the namespace pay does nothing in the namespace default, and lists only
// what is in pay.
func (f *federation) confined(t *testing.T, name string, conn *grpc.ClientConn, allocs []*nusav1.Allocation) {
	t.Helper()
	ctx := t.Context()
	for _, a := range attemptsOn(allocs[0]) {
		if err := refused(a.call(ctx, conn), name, a.what); err != nil {
			t.Error(err)
		}
	}
	if _, err := nusav1.NewAllocationsClient(conn).Get(ctx, &nusav1.GetAllocationRequest{Id: "00000000-no"}); refused(err, name, "read allocation") != nil {
		t.Errorf("%s: an allocation that does not exist: %v", name, err)
	}
	jobs := nusav1.NewJobsClient(conn)
	stream, err := jobs.SubmitMany(ctx)
	if err != nil {
		t.Fatal(err)
	}
	spec := func(namespace string) *nusav1.JobSpec {
		s, err := job.Parse([]byte(strings.Replace(twoRegions, "name: web", "name: x\nnamespace: "+namespace, 1)), "job.yaml")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	var got []codes.Code
	for _, namespace := range []string{"pay", "default", "pay"} {
		if err := stream.Send(&nusav1.SubmitRequest{Spec: spec(namespace)}); err != nil {
			t.Fatal(err)
		}
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, codes.Code(r.GetCode()))
		if r.GetCode() != 0 && !strings.Contains(r.GetError(), name+" may not submit job x in namespace default") {
			t.Error(r.GetError())
		}
	}
	if want := []codes.Code{codes.OK, codes.PermissionDenied, codes.OK}; !slices.Equal(got, want) {
		t.Errorf("%s: submits ended with %v, want %v", name, got, want)
	}
	if _, err := jobs.Submit(ctx, &nusav1.SubmitRequest{Spec: spec("default")}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("%s: a submit: %v", name, err)
	}
	list, err := jobs.List(ctx, &nusav1.ListJobsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, j := range list.GetJobs() {
		names = append(names, j.GetSpec().GetNamespace()+"/"+j.GetSpec().GetName())
	}
	if fmt.Sprint(names) != "[pay/x]" {
		t.Errorf("%s lists %v", name, names)
	}
	running, err := nusav1.NewAllocationsClient(conn).List(ctx, &nusav1.ListAllocationsRequest{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range running.GetAllocations() {
		if a.GetNamespace() != "pay" {
			t.Errorf("%s lists an allocation of %s", name, a.GetNamespace())
		}
	}
	if _, err := nusav1.NewNodesClient(conn).Drain(ctx, &nusav1.DrainNodeRequest{Id: "n1", Region: "b", Drain: true}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("%s drains a node: %v", name, err)
	}
	if nodes, err := nusav1.NewNodesClient(conn).List(ctx, &nusav1.ListNodesRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("%s lists nodes: %v, %v", name, nodes, err)
	}
}
