package gate_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/golden"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
	"github.com/nusa-scheduler/nusa/security/gate"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// request returns an empty request of a method.
func request(t *testing.T, method string) proto.Message {
	t.Helper()
	name := strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", ".")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		t.Fatal(err)
	}
	m, err := protoregistry.GlobalTypes.FindMessageByName(d.(protoreflect.MethodDescriptor).Input().FullName())
	if err != nil {
		t.Fatal(err)
	}
	return m.New().Interface()
}

// findsItself are the methods whose handlers find the object and ask rights.Call. The tests of the
// tiers show that the handlers do so.
var findsItself = []string{
	"Allocations/Exec", "Allocations/Get", "Allocations/ListFiles", "Allocations/Logs", "Allocations/ReadFile", "Allocations/Restart", "Allocations/Signal",
	"Allocations/Stats", "Allocations/Stop", "DeadLetters/Drop", "DeadLetters/Get", "DeadLetters/Redrive", "Jobs/Plan", "Jobs/Submit", "Jobs/SubmitMany",
	"Nodes/Cordon", "Nodes/Drain", "Nodes/Get", "Nodes/Remove",
	"Reservations/Claim", "Reservations/Create", "Reservations/Get", "Reservations/Release", "Rollouts/Revert",
	"Spares/Cancel", "Spares/Get", "Spares/Prepare", "Spares/Release", "Tasks/Get",
}

// TestActions writes what each method needs, and which built-in roles have that. Each method that
// operators may call has a row of its own with a verb of its kind, or is listed here.
func TestActions(t *testing.T) {
	free := []string{"/nusa.v1.Auth/CanI", "/nusa.v1.Auth/ListProviders", "/nusa.v1.Auth/Login", "/nusa.v1.Auth/Logout", "/nusa.v1.Auth/WhoAmI", "/nusa.v1.System/Info", "/nusa.v1.Identity/Join", "/nusa.v1.Identity/Renew"}
	var out strings.Builder
	line := func(method, needs string, answers []string) {
		for i, role := range authz.Builtin() {
			answers[i] = fmt.Sprintf("%-*s", len(role), answers[i])
		}
		fmt.Fprintln(&out, strings.TrimRight(fmt.Sprintf("%-36s %-28s %s", method, needs, strings.Join(answers, " ")), " "))
	}
	line("", "needs", authz.Builtin())
	var finds []string
	for _, method := range methods() {
		jane := member("operator/jane")
		called := gate.Allow(member("global/g1"), method, jane) == nil || gate.Allow(member("region/a/server/s1"), method, jane) == nil
		needs, own, reads := gate.Row(method)
		if !called || !strings.HasPrefix(method, "/nusa.v1.") {
			if needs != "" {
				t.Errorf("%s needs %s, but no operator may call it", method, needs)
			}
			continue
		}
		if needs == "" {
			if !slices.Contains(free, method) {
				t.Errorf("%s: every operator may call it", method)
			}
			line(method, "-", strings.Fields(strings.Repeat("yes ", len(authz.Builtin()))))
			continue
		}
		if !own {
			t.Errorf("%s has no row of its own", method)
		}
		if req := request(t, method); !reads(req) {
			finds = append(finds, strings.TrimPrefix(method, "/nusa.v1."))
		}
		verb, kind, _ := strings.Cut(strings.TrimSuffix(needs, ", a list"), " ")
		kind, _, _ = strings.Cut(kind, " or ")
		var may []string
		for _, role := range authz.Builtin() {
			d := authz.Decide(authz.Principal{Name: "operator/jane", Roles: []string{role}}, authz.Action{Verb: verb, Kind: kind}, &authz.Policy{})
			answer := "-"
			if d.Allowed {
				answer = "yes"
			}
			may = append(may, answer)
			if strings.Contains(d.Reason, "there is no verb") {
				t.Errorf("%s: %s", method, d.Reason)
			}
		}
		line(method, needs, may)
	}
	golden.File(t, "testdata/actions.txt", out.String())
	if !slices.Equal(finds, findsItself) {
		t.Errorf("handlers must find the objects of %v, want %v", finds, findsItself)
	}
}

// world is a gate of a server whose set the test chooses.
type world struct {
	t      *testing.T
	ca     *pkitest.CA
	server string
	set    *rights.Set
	now    time.Time
	token  string
	source *trust.Source // of the server, after the first try
}

func newWorld(t *testing.T, server string) *world {
	w := &world{t: t, ca: pkitest.New(t), server: server, now: time.Unix(1_000_000, 0)}
	w.set = w.must(rights.New(nil))
	return w
}

func (w *world) must(s *rights.Set, err error) *rights.Set {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) bind(name, role string, subjects, namespaces, regions []string) {
	w.t.Helper()
	w.set = w.must(w.set.SetBinding(&nusav1.AuthBinding{Name: name, Role: role, Subjects: subjects, Namespaces: namespaces, Regions: regions}, rights.Change{}))
}

// call makes a call as a member. handle is the handler; nil does nothing.
func (w *world) call(as, method string, req any, handle func(ctx context.Context) error) error {
	w.t.Helper()
	source := w.ca.Source(w.server)
	g := gate.New(gate.Options{Source: source, Rights: func() *rights.Set { return w.set }, Now: func() time.Time { return w.now }})
	ctx := peer.NewContext(w.t.Context(), &peer.Peer{AuthInfo: trust.Info{ID: w.ca.ID(as)}})
	if w.token != "" {
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(gate.TokenHeader, "Bearer "+w.token))
	}
	chain := g.Around()
	full := "/nusa.v1." + method
	_, err := chain[0](ctx, req, &grpc.UnaryServerInfo{FullMethod: full}, func(ctx context.Context, req any) (any, error) {
		return chain[1](ctx, req, &grpc.UnaryServerInfo{FullMethod: full}, func(ctx context.Context, _ any) (any, error) {
			if handle == nil {
				return nil, nil
			}
			return nil, handle(ctx)
		})
	})
	return err
}

// want compares the code of an error, and the beginning of its text.
func (w *world) want(err error, code codes.Code, text string) {
	w.t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		w.t.Errorf("%v, want %s: %s", err, code, text)
	}
}

func getJob(namespace, region string) *nusav1.GetJobRequest {
	return &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: namespace, Name: "api", Region: region}}
}

// TestWithoutBindings: an operator's certificate has the role admin.
func TestWithoutBindings(t *testing.T) {
	w := newWorld(t, "global/g1")
	w.want(w.call("operator/jane", "Auth/SetRole", &nusav1.SetRoleRequest{}, nil), codes.OK, "")
	w.want(w.call("operator/jane", "Jobs/Get", getJob("pay", ""), nil), codes.OK, "")
	w.bind("x", "viewer", []string{"operator/joe"}, nil, nil)
	w.want(w.call("operator/jane", "Jobs/Get", getJob("pay", ""), nil), codes.PermissionDenied,
		"operator/jane may not read job api in namespace pay, any region: no rule allows this: the principal has no roles")
	w.want(w.call("operator/jane", "Auth/WhoAmI", &nusav1.WhoAmIRequest{}, nil), codes.OK, "")
	w.want(w.call("operator/joe", "Jobs/Get", getJob("pay", ""), nil), codes.OK, "")
	w.want(w.call("operator/joe", "Jobs/Stop", &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "api"}}, nil), codes.PermissionDenied,
		"operator/joe may not stop job api in namespace default, any region: no rule allows this: the roles are viewer")
}

// TestNamespaces: an operator of one namespace reads, lists and submits there.
func TestNamespaces(t *testing.T) {
	w := newWorld(t, "global/g1")
	w.bind("pay", "submitter", []string{"operator/jane"}, []string{"pay"}, nil)
	jane := "operator/jane"
	w.want(w.call(jane, "Jobs/Get", getJob("pay", ""), nil), codes.OK, "")
	w.want(w.call(jane, "Jobs/Get", getJob("web", ""), nil), codes.PermissionDenied, "in namespace web")
	w.want(w.call(jane, "Jobs/Get", getJob("", ""), nil), codes.PermissionDenied, "in namespace default")
	submit := func(namespace string) func(context.Context) error {
		return func(ctx context.Context) error { return rights.Of(ctx).Check(namespace, "", "api") }
	}
	w.want(w.call(jane, "Jobs/Submit", &nusav1.SubmitRequest{}, submit("pay")), codes.OK, "")
	w.want(w.call(jane, "Jobs/Submit", &nusav1.SubmitRequest{}, submit("web")), codes.PermissionDenied, "operator/jane may not submit job api in namespace web")
	var read []string
	list := func(ctx context.Context) error {
		call := rights.Of(ctx)
		filtered := call.Filtered()
		for _, n := range []string{"web", "pay"} {
			if !filtered || call.May(n, "") {
				read = append(read, n)
			}
		}
		return nil
	}
	w.want(w.call(jane, "Jobs/List", &nusav1.ListJobsRequest{}, list), codes.OK, "")
	w.want(w.call(jane, "Jobs/List", &nusav1.ListJobsRequest{Namespace: "pay"}, list), codes.OK, "")
	w.want(w.call("operator/joe", "Jobs/List", &nusav1.ListJobsRequest{}, list), codes.PermissionDenied, "operator/joe may not read job")
	w.bind("all", "viewer", []string{"operator/ann"}, nil, nil)
	w.want(w.call("operator/ann", "Jobs/List", &nusav1.ListJobsRequest{}, list), codes.OK, "")
	// The second list is of one namespace, which the gate has decided. The last is of a viewer of all.
	if want := []string{"pay", "web", "pay", "web", "pay"}; !slices.Equal(read, want) {
		t.Errorf("the lists have %v, want %v", read, want)
	}
	// A list of what the caller may read nowhere is refused, and does not look empty.
	w.want(w.call(jane, "Jobs/List", &nusav1.ListJobsRequest{Namespace: "web"}, list), codes.PermissionDenied, "may not read job in namespace web")
	hidden := &nusav1.ListAllocationsRequest{Job: &nusav1.JobRef{Namespace: "web", Name: "api"}}
	w.want(w.call(jane, "Allocations/List", hidden, list), codes.PermissionDenied, "in namespace web")
	// The overview and the events have what the caller may read: at least its jobs.
	w.want(w.call(jane, "Overview/Watch", &nusav1.WatchOverviewRequest{}, list), codes.OK, "")
	w.want(w.call("operator/joe", "Overview/Watch", &nusav1.WatchOverviewRequest{}, list), codes.PermissionDenied, "operator/joe may not read region")
	w.want(w.call(jane, "Events/Watch", &nusav1.WatchEventsRequest{}, list), codes.OK, "")
	w.want(w.call(jane, "Events/Watch", &nusav1.WatchEventsRequest{Region: "a"}, list), codes.OK, "")
	w.want(w.call("operator/joe", "Events/Watch", &nusav1.WatchEventsRequest{}, list), codes.PermissionDenied, "operator/joe may not read event")
	// A role that is narrowed to namespaces says nothing about nodes.
	w.want(w.call(jane, "Nodes/List", &nusav1.ListNodesRequest{}, nil), codes.PermissionDenied, "operator/jane may not read node in any region")
	w.want(w.call(jane, "Nodes/Get", &nusav1.GetNodeRequest{Id: "n1", Region: "a"}, nil), codes.PermissionDenied, "operator/jane may not read node n1 in region a")
}

// TestUnchecked: a handler that answers without a decision about the object it found fails, and a
// stream sends nothing before the decision.
func TestUnchecked(t *testing.T) {
	w := newWorld(t, "global/g1")
	w.bind("pay", "submitter", []string{"operator/jane"}, []string{"pay"}, nil)
	w.want(w.call("operator/jane", "Allocations/Get", &nusav1.GetAllocationRequest{Id: "1234"}, nil), codes.Internal, "did not decide")
	source := w.ca.Source("global/g1")
	g := gate.New(gate.Options{Source: source, Rights: func() *rights.Set { return w.set }})
	ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: trust.Info{ID: w.ca.ID("operator/jane")}})
	logs := func(method string, handle func(s grpc.ServerStream) error) error {
		return g.AroundStreams()[1](nil, &scripted{fakeStream: fakeStream{ctx: ctx}}, &grpc.StreamServerInfo{FullMethod: "/nusa.v1." + method}, func(_ any, s grpc.ServerStream) error {
			return handle(s)
		})
	}
	w.want(logs("Allocations/Logs", func(s grpc.ServerStream) error {
		if err := s.RecvMsg(&nusav1.LogsRequest{}); err != nil {
			return err
		}
		return s.SendMsg(&nusav1.LogChunk{})
	}), codes.Internal, "did not decide")
	w.want(logs("Allocations/Logs", func(s grpc.ServerStream) error {
		if err := s.RecvMsg(&nusav1.LogsRequest{}); err != nil {
			return err
		}
		if err := rights.Of(s.Context()).Check("pay", "a", "x"); err != nil {
			return err
		}
		return s.SendMsg(&nusav1.LogChunk{})
	}), codes.OK, "")
	w.want(logs("Topology/Watch", func(s grpc.ServerStream) error { return s.RecvMsg(&nusav1.MatrixRequest{}) }), codes.PermissionDenied, "may not read topology")
	w.want(logs("Jobs/Watch", func(s grpc.ServerStream) error { return s.SendMsg(&nusav1.Job{}) }), codes.Internal, "did not decide")
}

type scripted struct{ fakeStream }

func (*scripted) RecvMsg(any) error { return nil }
func (*scripted) SendMsg(any) error { return nil }

// TestTokens: a token replaces the certificate that comes with it.
func TestTokens(t *testing.T) {
	w := newWorld(t, "global/g1")
	var text string
	var made *nusav1.AccessToken
	var err error
	w.set, made, text, err = w.set.CreateToken(rights.NewToken{
		Request: &nusav1.CreateAccessTokenRequest{Roles: []string{"viewer"}, Namespaces: []string{"pay"}, Ttl: durationpb.New(time.Hour)}, Now: w.now,
	})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(fmt.Sprint(w.set.Tokens(), made), "hash") {
		t.Error("a list has the hash of a token")
	}
	w.token = text
	who := func(ctx context.Context) error {
		if got := rights.Of(ctx).Who.Name; got != "token/"+made.GetAccessor() {
			t.Errorf("the principal is %s", got)
		}
		return nil
	}
	for _, as := range []string{"operator/jane", "global/g2"} { // itself, or forwarded by a standby
		w.want(w.call(as, "Jobs/Get", getJob("pay", ""), who), codes.OK, "")
		w.want(w.call(as, "Jobs/Get", getJob("web", ""), who), codes.PermissionDenied, "token/"+made.GetAccessor()+" may not read job api in namespace web")
	}
	for what, bad := range map[string]string{"another secret": text[:len(text)-1] + "x", "no token": "x", "another accessor": strings.Replace(text, made.GetAccessor(), "aaaaaaab", 1)} {
		w.token = bad
		err := w.call("operator/jane", "Auth/WhoAmI", &nusav1.WhoAmIRequest{}, nil)
		if w.want(err, codes.Unauthenticated, "not valid"); strings.Contains(err.Error(), strings.Split(text, "_")[2]) {
			t.Errorf("%s: the error has the secret: %v", what, err)
		}
	}
	w.token, w.now = text, w.now.Add(time.Hour)
	w.want(w.call("operator/jane", "Jobs/Get", getJob("pay", ""), nil), codes.Unauthenticated, "expired")
	w.now = w.now.Add(-time.Hour)
	w.set = w.must(w.set.RevokeToken(made.GetAccessor()))
	w.want(w.call("operator/jane", "Jobs/Get", getJob("pay", ""), nil), codes.Unauthenticated, "revoked")
}

// TestUndecided: a server that does not know who may do what decides nothing for operators, and
// other members are not concerned.
func TestUndecided(t *testing.T) {
	w := newWorld(t, "global/g1")
	w.set = nil
	w.want(w.call("operator/jane", "Jobs/Get", getJob("", ""), nil), codes.Unavailable, "does not know yet")
	w.want(w.call("operator/jane", "System/Info", &nusav1.InfoRequest{}, nil), codes.OK, "")
	w.want(w.call("region/a/server/s1", "Topology/Matrix", &nusav1.MatrixRequest{}, nil), codes.OK, "")
	w.token = "nusa_x"
	w.want(w.call("operator/jane", "System/Info", &nusav1.InfoRequest{}, nil), codes.Unavailable, "does not know yet")
}

// TestOwnRegion: at a regional server objects without another region are of the server's region.
func TestOwnRegion(t *testing.T) {
	w := newWorld(t, "region/a/server/s1")
	w.bind("a", "operator", []string{"operator/jane"}, nil, []string{"a"})
	w.bind("b", "operator", []string{"operator/joe"}, nil, []string{"b"})
	for _, c := range []struct {
		method string
		req    any
	}{
		{"Jobs/Get", getJob("pay", "")}, {"Nodes/List", &nusav1.ListNodesRequest{}}, {"Nodes/Drain", &nusav1.DrainNodeRequest{Id: "n1"}},
		{"Events/Watch", &nusav1.WatchEventsRequest{}}, {"Regions/Rebind", &nusav1.RebindRegionRequest{}},
	} {
		w.want(w.call("operator/jane", c.method, c.req, nil), codes.OK, "")
		w.want(w.call("operator/joe", c.method, c.req, nil), codes.PermissionDenied, "region a")
		w.want(w.call("global/g1", c.method, c.req, nil), codes.OK, "")
	}
	w.want(w.call("operator/jane", "Jobs/Get", getJob("pay", "b"), nil), codes.PermissionDenied, "region b")
	// A request of another region does not reach the own region's objects, whatever the handler does.
	other := getJob("pay", "b")
	other.Job.Name = "api@a"
	w.want(w.call("operator/joe", "Jobs/Get", other, nil), codes.PermissionDenied, "region a")
	w.want(w.call("operator/joe", "Allocations/List", &nusav1.ListAllocationsRequest{Job: other.Job}, func(ctx context.Context) error {
		if call := rights.Of(ctx); !call.Filtered() || call.May("pay", "") {
			t.Error("joe's list has the allocations of the own region")
		}
		return nil
	}), codes.OK, "")
}

// TestListOfTwoRegions: a request that names two regions is not decided by one of them.
func TestListOfTwoRegions(t *testing.T) {
	w := newWorld(t, "global/g1")
	w.bind("a", "operator", []string{"operator/jane"}, nil, []string{"a"})
	for region, filtered := range map[string]bool{"a": false, "b": true} {
		req := &nusav1.ListAllocationsRequest{Region: region, Job: &nusav1.JobRef{Namespace: "pay", Region: "a"}}
		w.want(w.call("operator/jane", "Allocations/List", req, func(ctx context.Context) error {
			if got := rights.Of(ctx).Filtered(); got != filtered {
				t.Errorf("regions a and %s: filtered is %v", region, got)
			}
			return nil
		}), codes.OK, "")
	}
}
