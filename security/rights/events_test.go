package rights_test

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// eventStream notes the messages of the events that were sent.
type eventStream struct {
	grpc.ServerStream
	ctx  context.Context
	sent []string
}

func (s *eventStream) Context() context.Context { return s.ctx }

func (s *eventStream) Send(e *nusav1.Event) error {
	s.sent = append(s.sent, e.GetMessage())
	return nil
}

// TestReadableEvents: a caller gets the events of its namespaces and regions. A reset and a gap tell everybody that
// events are missing.
func TestReadableEvents(t *testing.T) {
	t.Parallel()
	all := []*nusav1.Event{
		{Message: "pay", Type: "job.submitted", Namespace: "pay"},
		{Message: "pay in a", Type: "slot.accepted", Namespace: "pay", Region: "a"},
		{Message: "web", Type: "job.submitted", Namespace: "web"},
		{Message: "region a", Type: "region.connected", Region: "a"},
		{Message: "region b", Type: "region.connected", Region: "b"},
		{Message: "auth", Type: "auth.changed"},
		{Message: "reset", Reset_: true},
		{Message: "gap", Type: "instance.gap"},
	}
	for _, c := range []struct {
		name    string
		binding *nusav1.AuthBinding
		all     bool
		want    []string
	}{
		{"one namespace", &nusav1.AuthBinding{Namespaces: []string{"pay"}}, false, []string{"pay", "pay in a", "reset", "gap"}},
		{"one region", &nusav1.AuthBinding{Regions: []string{"a"}}, false, []string{"pay in a", "region a", "reset", "gap"}},
		{"everything", &nusav1.AuthBinding{}, true, []string{"pay", "pay in a", "web", "region a", "region b", "auth", "reset", "gap"}},
	} {
		c.binding.Name, c.binding.Role, c.binding.Subjects = "x", "viewer", []string{"operator/jane"}
		set, err := rights.New(&nusav1.AuthSet{Bindings: []*nusav1.AuthBinding{c.binding}})
		if err != nil {
			t.Fatal(err)
		}
		call := &rights.Call{Set: set, Who: set.Operator("jane"), Verb: "read", Kind: "event", All: c.all}
		s := &eventStream{ctx: rights.With(t.Context(), call)}
		out := rights.Readable(s)
		if !call.Checked() {
			t.Errorf("%s: the call counts as undecided", c.name)
		}
		for _, e := range all {
			if err := out.Send(e); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(s.sent, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, s.sent, c.want)
		}
	}
	s := &eventStream{ctx: t.Context()} // of another server
	if err := rights.Readable(s).Send(all[0]); err != nil || len(s.sent) != 1 {
		t.Errorf("a call without a principal gets %q, %v", s.sent, err)
	}
}
