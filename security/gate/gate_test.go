package gate_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nusa-scheduler/nusa/internal/golden"
	_ "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/gate"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// methods returns every method that a server may serve, by its full name. The service Driver
// is that of a plugin, which serves its own agent over a pipe.
func methods() []string {
	out := []string{"/grpc.health.v1.Health/Check", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"}
	protoregistry.GlobalFiles.RangeFilesByPackage("nusa.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				if s.Name() != "Driver" {
					out = append(out, fmt.Sprintf("/%s/%s", s.FullName(), s.Methods().Get(j).Name()))
				}
			}
		}
		return true
	})
	slices.Sort(out)
	return out
}

func member(path string) identity.ID {
	id, err := identity.ParsePath("f", path)
	if err != nil {
		panic(err)
	}
	return id
}

// TestCalls writes for each method and each server which members may call the method. A new
// method without a row in the table may be called by nobody, which this test refuses.
func TestCalls(t *testing.T) {
	members := []identity.ID{member("operator/jane"), member("global/g2"), member("region/a/server/s2"), member("region/b/server/s1"), member("region/a/agent/n1"), member("region/b/agent/n1")}
	var out strings.Builder
	called := map[string]bool{}
	for _, server := range []identity.ID{member("global/g1"), member("region/a/server/s1")} {
		fmt.Fprintf(&out, "%s\n", server.Describe())
		for _, method := range methods() {
			var may []string
			for _, m := range members {
				if gate.Allow(server, method, m) == nil {
					may = append(may, strings.TrimPrefix(m.String(), "spiffe://f/"))
				}
				foreign := m
				foreign.Federation = "other"
				if gate.Allow(server, method, foreign) == nil {
					t.Errorf("%s may call %s", foreign, method)
				}
			}
			called[method] = called[method] || len(may) > 0
			fmt.Fprintln(&out, strings.TrimRight(fmt.Sprintf("  %-60s %s", method, strings.Join(may, " ")), " "))
		}
	}
	for method, ok := range called {
		if !ok {
			t.Errorf("%s has no row in the table", method)
		}
	}
	golden.File(t, "testdata/calls.txt", out.String())
	for _, method := range []string{"", "/", "/nusa.v1.Driver/Start", "/nusa.v1.Jobs", "nusa.v1.Jobs/Get", "/nusa.v1.Jobsx/Get", "/other/Get"} {
		if err := gate.Allow(members[0], method, members[0]); err == nil {
			t.Errorf("%q is allowed", method)
		}
	}
}

// TestCallers: the caller of a forwarded call is the member that the header names, if a
// server of the same tier forwards the call. From all others the header has no effect.
func TestCallers(t *testing.T) {
	ca := pkitest.New(t)
	jane, agent := "operator/jane", "region/a/agent/n1"
	for name, c := range map[string]struct {
		server, peer, header, method string
		want                         codes.Code
		caller                       string
	}{
		"an operator":                          {"global/g1", jane, "", "Jobs/Submit", codes.OK, jane},
		"an operator poses as a region":        {"global/g1", jane, "region/a/server/s1", "Federation/Session", codes.PermissionDenied, ""},
		"an operator opens Dispatch":           {"region/a/server/s1", jane, "", "Dispatch/Session", codes.PermissionDenied, ""},
		"an agent opens a region's session":    {"global/g1", agent, "", "Federation/Session", codes.PermissionDenied, ""},
		"an agent poses as an operator":        {"region/a/server/s1", agent, jane, "Jobs/Submit", codes.PermissionDenied, ""},
		"an agent of another region":           {"region/a/server/s1", "region/b/agent/n1", "", "Dispatch/Session", codes.PermissionDenied, ""},
		"a region":                             {"global/g1", "region/a/server/s1", "", "Federation/Session", codes.OK, "region/a/server/s1"},
		"a region submits to the global tier":  {"global/g1", "region/a/server/s1", "", "Jobs/Submit", codes.PermissionDenied, ""},
		"a region poses as an operator":        {"global/g1", "region/a/server/s1", jane, "Jobs/Submit", codes.PermissionDenied, ""},
		"a region poses as another":            {"global/g1", "region/a/server/s1", "region/b/server/s1", "Federation/Session", codes.OK, "region/a/server/s1"},
		"a standby forwards an operator":       {"global/g1", "global/g2", jane, "Jobs/Submit", codes.OK, jane},
		"a standby forwards a region":          {"global/g1", "global/g2", "region/b/server/s1", "Federation/Session", codes.OK, "region/b/server/s1"},
		"a standby forwards an agent":          {"global/g1", "global/g2", agent, "Jobs/Submit", codes.PermissionDenied, ""},
		"a follower forwards an operator":      {"region/a/server/s1", "region/a/server/s2", jane, "Jobs/Submit", codes.OK, jane},
		"a follower calls by itself":           {"region/a/server/s1", "region/a/server/s2", "", "Jobs/Submit", codes.PermissionDenied, ""},
		"a follower reads a sibling":           {"region/a/server/s1", "region/a/server/s2", "", "Siblings/Kept", codes.OK, "region/a/server/s2"},
		"another region reads a sibling":       {"region/a/server/s1", "region/b/server/s1", "", "Siblings/Kept", codes.PermissionDenied, ""},
		"another region reads round trips":     {"region/a/server/s1", "region/b/server/s1", "", "Topology/Matrix", codes.OK, "region/b/server/s1"},
		"another region forwards an operator":  {"region/a/server/s1", "region/b/server/s1", jane, "Jobs/Submit", codes.PermissionDenied, ""},
		"the global tier calls":                {"region/a/server/s1", "global/g1", "", "Jobs/Submit", codes.OK, "global/g1"},
		"a standby forwards a damaged name":    {"global/g1", "global/g2", "!", "Jobs/Submit", codes.Unauthenticated, ""},
		"a standby forwards an authority":      {"global/g1", "global/g2", "region/a", "Jobs/Submit", codes.Unauthenticated, ""},
		"not encrypted":                        {"global/g1", "", "", "Jobs/Submit", codes.Unauthenticated, ""},
		"not encrypted, and a name comes with": {"global/g1", "", jane, "Jobs/Submit", codes.Unauthenticated, ""},
	} {
		server := ca.Source(c.server)
		ctx := t.Context()
		if c.peer != "" {
			ctx = peer.NewContext(ctx, &peer.Peer{AuthInfo: trust.Info{ID: ca.ID(c.peer)}})
		} else {
			ctx = peer.NewContext(ctx, &peer.Peer{})
		}
		if c.header != "" {
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(trust.CallerHeader, "spiffe://"+server.ID().Federation+"/"+c.header))
		}
		var seen []identity.ID
		admission := gate.New(gate.Options{Source: server})
		unary := admission.Around()[0]
		_, err := unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/nusa.v1." + c.method}, func(ctx context.Context, _ any) (any, error) {
			id, _ := trust.CallerOf(ctx)
			seen = append(seen, id)
			return nil, nil
		})
		streamErr := admission.AroundStreams()[0](nil, fakeStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: "/nusa.v1." + c.method}, func(_ any, s grpc.ServerStream) error {
			id, _ := trust.CallerOf(s.Context())
			seen = append(seen, id)
			return nil
		})
		if status.Code(err) != c.want || status.Code(streamErr) != c.want {
			t.Errorf("%s: %v and %v, want %s", name, err, streamErr, c.want)
		}
		if c.want == codes.OK && (len(seen) != 2 || seen[0] != ca.ID(c.caller) || seen[1] != ca.ID(c.caller)) {
			t.Errorf("%s: the callers are %v, want %s", name, seen, c.caller)
		}
		if c.want != codes.OK && len(seen) > 0 {
			t.Errorf("%s: the call went through", name)
		}
	}
	if open := gate.New(gate.Options{}); open.Around() != nil || open.AroundStreams() != nil {
		t.Error("a server without an identity has a gate")
	}
}

type fakeStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (f fakeStream) Context() context.Context { return f.ctx }

func TestListeners(t *testing.T) {
	for server, want := range map[string]string{
		"global/g1":          "an operator, or a global server, or a regional server of any region",
		"region/a/server/s1": "an agent of region a, or a regional server of any region, or an operator",
	} {
		if got := gate.Listener(member(server)).String(); got != want {
			t.Errorf("%s: %s, want %s", server, got, want)
		}
	}
}
