package state

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/security/audit"
)

func audited(c Command, verb string) Command {
	c.Audit = AuditOf(audit.Entry{Who: "operator/jane", Verb: verb, Kind: "job", Outcome: audit.Done})
	return c
}

func trailOf(v *View) string {
	var out []string
	for e := range v.Audit().Entries() {
		out = append(out, fmt.Sprintf("%d %s", e.Seq, e.Verb))
	}
	return strings.Join(out, ", ")
}

// rootOf computes the tree of the entries after the base again.
func rootOf(v *View) audit.Hash {
	tree := v.Audit().Base()
	for e := range v.Audit().Entries() {
		whole := e.Entry(v.Cluster().Region)
		tree = tree.Append(whole.Hash())
	}
	return tree.Root()
}

// TestAuditEntries: a command leaves its entry if it changes something, and only then. A snapshot
// has the whole trail.
func TestAuditEntries(t *testing.T) {
	l := newLog(t)
	own := *testJob(0, nil)
	own.Key = JobKey{"default", "api", true}
	submit := Command{SubmitLocalJob: &SubmitLocalJob{Job: own}}
	l.ok(audited(submit, "submit"))
	l.ok(audited(submit, "submit again"))
	l.fails(audited(Command{StopLocalJob: &StopLocalJob{Namespace: "default", Name: "none"}}, "stop none"), ErrNotFound)
	old := l.Snapshot()
	l.ok(audited(Command{}, "exec"))
	l.ok(audited(Command{Batch: []Command{audited(testNode("n1"), "one"), audited(testNode("n2"), "two")}}, "batch"))
	if got := trailOf(&l.View); got != "1 submit, 2 exec, 3 one, 4 two" {
		t.Errorf("the trail is %s", got)
	}
	if got := trailOf(old); got != "1 submit" {
		t.Errorf("an old view has %s", got)
	}
	if l.Audit().Tree().Size != 4 || rootOf(&l.View) != l.Audit().Tree().Root() {
		t.Errorf("the tree is %+v", l.Audit().Tree())
	}
	restored, err := Restore(seq(recordsOf(l.Snapshot())))
	if err != nil || restored.Snapshot().Hash() != l.Snapshot().Hash() || !restored.Audit().Tree().Equal(l.Audit().Tree()) || restored.trail.bytes != l.trail.bytes {
		t.Fatalf("the restored trail is %s: %v", trailOf(&restored.View), err)
	}
	for e := range l.Audit().Latest() {
		if e.Seq != 4 {
			t.Errorf("the latest entry is %d", e.Seq)
		}
		break
	}
}

// TestAuditIsBounded: the oldest entries are removed when the trail is too large or they are too
// old. The tree stays that of all entries.
func TestAuditIsBounded(t *testing.T) {
	l := newLog(t)
	long := strings.Repeat("x", 512)
	big := Command{Audit: &AuditEntry{Who: long, From: long, Method: long, Name: long, Reason: long, Request: long, Namespace: long}}
	most := int(AuditBytes/big.Audit.size()) + 10
	for range most {
		l.ok(big)
	}
	base := l.Audit().Base()
	if l.trail.bytes > AuditBytes || base.Size != 10 || l.trail.entries.Len() != most-10 || rootOf(&l.View) != l.Audit().Tree().Root() {
		t.Errorf("%d bytes, %d entries after %d", l.trail.bytes, l.trail.entries.Len(), base.Size)
	}
	l.now += int64(AuditAge) + second
	l.ok(audited(Command{}, "exec"))
	if got := trailOf(&l.View); got != fmt.Sprintf("%d exec", most+1) || rootOf(&l.View) != l.Audit().Tree().Root() {
		t.Errorf("after 30 days the trail is %s", got)
	}
	restored, err := Restore(seq(recordsOf(l.Snapshot())))
	if err != nil || !restored.Audit().Tree().Equal(l.Audit().Tree()) || !restored.Audit().Base().Equal(l.Audit().Base()) {
		t.Errorf("the restored tree is %+v: %v", restored.Audit().Tree(), err)
	}
	records := recordsOf(l.Snapshot())
	for i := range records {
		if records[i].Trail != nil {
			records[i].Trail = &TrailRecord{Size: 3}
		}
	}
	if _, err := Restore(seq(records)); err == nil {
		t.Error("a damaged tree is restored")
	}
}
