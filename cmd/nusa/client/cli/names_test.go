package cli

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestNamesAreThoseOfTheObjects: -o name prints what other commands accept, not the name of an object that another one is about.
func TestNamesAreThoseOfTheObjects(t *testing.T) {
	for want, m := range map[string]proto.Message{
		"7 8":                 &nusav1.ListAuditResponse{Entries: []*nusav1.AuditEntry{{Seq: 7, Name: "web"}, {Seq: 8, Request: "x"}}},
		"default/web":         &nusav1.ListOverridesResponse{Overrides: []*nusav1.Override{{Namespace: "default", Job: "web", Region: "jakarta"}}},
		"default/web@jakarta": &nusav1.Job{Spec: &nusav1.JobSpec{Namespace: "default", Name: "web"}, Region: "jakarta"},
	} {
		names, ok := namesOf(m.ProtoReflect())
		if got := strings.Join(names, " "); !ok || got != want {
			t.Errorf("%q, %v, want %q", got, ok, want)
		}
	}
	if names, ok := namesOf((&nusav1.StopJobResponse{}).ProtoReflect()); ok {
		t.Errorf("a response without an object has the names %q", names)
	}
}
