package client

import (
	"context"
	"strings"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// repairsServer answers each comparison with one repair.
type repairsServer struct {
	nusav1.UnimplementedRepairsServer
}

func (repairsServer) Run(_ context.Context, req *nusav1.ReconcileRequest) (*nusav1.ReconcileResponse, error) {
	if req.GetRegion() == "away" {
		return &nusav1.ReconcileResponse{Results: []*nusav1.ReconcileResult{{Tier: "region", Region: "away", Skipped: "no session"}}}, nil
	}
	return &nusav1.ReconcileResponse{Results: []*nusav1.ReconcileResult{
		{Tier: "global", Compared: 12},
		{Tier: "agent", Region: "oslo" + req.GetRegion(), Compared: 7, More: 3, Skipped: "node n9: no session", Repairs: []*nusav1.Repair{
			{Kind: "agent_stray", Object: "n1/a1", Why: "it is there", Repair: "it was stopped"},
		}},
	}}, nil
}

// TestReconcile: the command shows what was compared and repaired.
func TestReconcile(t *testing.T) {
	f := newFake(t)
	for want, args := range map[string][]string{
		"agent_stray":         {"operator", "reconcile", "--now"},
		"node n9: no session": {"operator", "reconcile", "--now"},
		"(and 3 more)":        {"operator", "reconcile", "--now"},
		"osloeast":            {"operator", "reconcile", "--now", "--region", "east"},
		`"compared": "7"`:     {"operator", "reconcile", "--now", "-o", "json"},
		"add --now":           {"operator", "reconcile"},
	} {
		out, errOut, _ := f.run(t.Context(), "", append(args, "--addr="+f.addr)...)
		if !strings.Contains(out+errOut, want) {
			t.Errorf("nusa %s: without %q:\n%s%s", strings.Join(args, " "), want, out, errOut)
		}
	}
	if _, _, code := f.run(t.Context(), "", "operator", "reconcile", "--now", "--addr="+f.addr); code != 0 {
		t.Errorf("with a node that was not compared: exit code %d", code)
	}
	if out, errOut, code := f.run(t.Context(), "", "operator", "reconcile", "--now", "--region", "away", "--addr="+f.addr); code != 1 || !strings.Contains(out, "no session") || !strings.Contains(errOut, "not compared: away") {
		t.Errorf("with a region that was not compared: exit code %d\n%s%s", code, out, errOut)
	}
}
