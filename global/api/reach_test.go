package api

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestSilentRegionIsExplained: the error about a region that did not answer names the time and the
// next step, and not gRPC's text.
func TestSilentRegionIsExplained(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	_, errs := askAll(ctx, []regionConn{{name: "tokyo"}, {name: "seoul"}}, func(ctx context.Context, c regionConn) (int, error) {
		if c.name == "seoul" {
			return 0, status.Error(codes.Internal, "own text")
		}
		<-ctx.Done()
		return 0, status.FromContextError(ctx.Err()).Err()
	})
	want := map[string]string{
		"tokyo": "no answer within 5s: it may be cut off, which `nusa region list` shows soon",
		"seoul": "own text",
	}
	for _, e := range errs {
		if e.GetMessage() != want[e.GetRegion()] {
			t.Errorf("%s: %q, want %q", e.GetRegion(), e.GetMessage(), want[e.GetRegion()])
		}
	}
	if len(errs) != 2 {
		t.Errorf("%d errors, want 2", len(errs))
	}
}

// TestOfRegion: a region whose servers do not know a call or its service is reported as too old; a refusal stays as it is.
func TestOfRegion(t *testing.T) {
	for text, unknown := range map[string]bool{
		"unknown method Restart for service nusa.v1.Allocations": true, "unknown service nusa.v1.Pools": true,
		"the agent of node n1 is of an earlier version": false,
	} {
		got := status.Convert(ofRegion("oslo", status.Error(codes.Unimplemented, text))).Message()
		if want := "the servers of region oslo are of an earlier version and cannot do this: upgrade them"; (got == want) != unknown {
			t.Errorf("%s: %s", text, got)
		}
	}
	if err := ofRegion("oslo", nil); err != nil {
		t.Error(err)
	}
}

// TestRegionRemovedDuringList: a region that is removed while allocations are listed has no last report.
func TestRegionRemovedDuringList(t *testing.T) {
	term := NewTerm(TermConfig{Context: t.Context(), State: state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })})
	errs := []*nusav1.PartialError{{Region: "oslo", Message: "region oslo is cut off"}}
	for _, req := range []*nusav1.ListAllocationsRequest{{}, {Job: &nusav1.JobRef{Name: "web"}}} {
		addLastReported(term, req, errs)
	}
	if got := errs[0].GetMessage(); got != "region oslo is cut off" {
		t.Error(got)
	}
}
