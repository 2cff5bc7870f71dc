package gate_test

import (
	"context"
	"net"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/gate"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TestRecordedDenials: every denial is counted. Only the denials of callers with a certificate are
// recorded, because everybody can cause the others.
func TestRecordedDenials(t *testing.T) {
	ca := pkitest.New(t)
	agent := &peer.Peer{AuthInfo: trust.Info{ID: ca.ID("region/a/agent/n1")}}
	for name, c := range map[string]struct {
		peer     *peer.Peer
		want     codes.Code
		recorded int
	}{
		"an agent":            {agent, codes.PermissionDenied, 2},
		"without certificate": {&peer.Peer{AuthInfo: trust.Info{}}, codes.Unauthenticated, 0},
		"not encrypted":       {&peer.Peer{}, codes.Unauthenticated, 0},
	} {
		var recorded []audit.Entry
		g := gate.New(gate.Options{Source: ca.Source("region/a/server/s1"), Record: func(e audit.Entry) { recorded = append(recorded, e) }})
		metrics := prometheus.NewRegistry()
		if err := g.Register(metrics); err != nil {
			t.Fatal(err)
		}
		ctx := peer.NewContext(t.Context(), c.peer)
		_, err := g.Around()[0](ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/nusa.v1.Jobs/List"}, func(context.Context, any) (any, error) { return nil, nil })
		streamErr := g.AroundStreams()[0](nil, fakeStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: "/nusa.v1.Jobs/List"}, func(any, grpc.ServerStream) error { return nil })
		if status.Code(err) != c.want || status.Code(streamErr) != c.want || len(recorded) != c.recorded {
			t.Errorf("%s: %v and %v with the entries %v, want %s and %d entries", name, err, streamErr, recorded, c.want, c.recorded)
		}
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		counted := 0.0
		for _, f := range families {
			if f.GetName() == "nusa_auth_denied_total" {
				counted += f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		if counted != 2 {
			t.Errorf("%s: %v denials are counted, want 2", name, counted)
		}
	}
}

// TestRefusedConnectionsAreCounted: the metrics of a gate have the refused handshakes of its source.
func TestRefusedConnectionsAreCounted(t *testing.T) {
	source := pkitest.New(t).Source("region/a/server/s1")
	g, metrics := gate.New(gate.Options{Source: source}), prometheus.NewRegistry()
	if err := g.Register(metrics); err != nil {
		t.Fatal(err)
	}
	source.Refuse(&net.TCPAddr{}, pki.ErrExpired)
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "nusa_refused_connections_total" && len(f.GetMetric()) == 1 && f.GetMetric()[0].GetCounter().GetValue() == 1 {
			return
		}
	}
	t.Errorf("the metrics are %v", families)
}
