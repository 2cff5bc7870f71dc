package audit

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// TestRendering shows every table from fixed messages, plain and in colour.
func TestRendering(t *testing.T) {
	at := timestamppb.New(time.Date(2026, 11, 23, 10, 30, 0, 0, time.Local))
	submit := &nusav1.AuditEntry{
		Seq: 41, Time: at, Who: "operator/jane", From: "192.0.2.7:51234", Method: "Jobs/Submit", Verb: "submit", Kind: "job",
		Namespace: "default", Name: "api", Outcome: audit.Done, Reason: "version 3", Request: "4f1c9a7d2b6e8035", Before: []byte{1, 2}, After: []byte{3, 4}, Hash: []byte{5, 6},
	}
	all := &nusav1.ListAuditResponse{NextPage: "41-1", Entries: []*nusav1.AuditEntry{
		{Seq: 44, Time: at, Who: "operator/mallory", From: "[2001:db8::1]:4242", Verb: "recover", Kind: "system", Outcome: audit.Denied, Reason: "no rule allows it"},
		{Seq: 43, Time: at, Who: "global/g1", Verb: "lose", Kind: "region", Name: "jakarta", Region: "jakarta", Outcome: audit.Done, Reason: "silent for 45s"},
		{Seq: 42, Time: at, From: "192.0.2.7:51234", Verb: "exec", Kind: "allocation", Namespace: "default", Name: "0c7b9d1e-4a52-4c1b-9d4e-1f2a3b4c5d6e", Region: "jakarta", Outcome: audit.Started, Reason: "api/web/0 on n1"},
		submit,
	}}
	sound := &nusav1.AuditReport{Trail: "nusa/FED/global", Key: "nusa/FED/global+00000000+AAAA", First: 1, Last: 44, Entries: 44, Signed: 44}
	damaged := &nusav1.AuditReport{
		Trail: "nusa/FED/global", Key: "nusa/FED/global+00000000+AAAA", First: 11, Last: 44, Entries: 33, Signed: 44, TooOld: []int64{7},
		Findings: []*nusav1.AuditFinding{
			{Damage: "missing", From: 12, To: 12, Why: "entry 13 follows entry 11"},
			{Damage: "changed", Why: "its first 44 entries are not those that were signed"},
		},
	}
	sample.Render(t, []sample.Rendering{
		sample.Of("audit list", func(w *term.Screen) { writeEntries(w, all) }),
		sample.Of("audit list, none", func(w *term.Screen) { writeEntries(w, &nusav1.ListAuditResponse{}) }),
		sample.Of("audit show", func(w *term.Screen) { writeEntry(w, submit) }),
		sample.Of("audit verify", func(w *term.Screen) { writeReport(w, sound, false) }),
		sample.Of("audit verify, damaged", func(w *term.Screen) { writeReport(w, damaged, false) }),
	})
}
