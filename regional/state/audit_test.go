package state

import (
	"fmt"
	"strings"
	"testing"
	"time"

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

// forwarded returns a command with a large entry. It says that the global tier has stored this many
// entries.
func forwarded(stored int64) Command {
	long := strings.Repeat("x", 512)
	return Command{Audit: &AuditEntry{Who: long, From: long, Method: long, Name: long, Reason: long, Request: long, Namespace: long, Stored: stored + 1}}
}

// TestAuditWaitsForTheGlobalTier: entries that the global tier has not stored are kept beyond the
// usual bounds, up to a hard bound. Those that are removed at the hard bound are counted.
func TestAuditWaitsForTheGlobalTier(t *testing.T) {
	one := forwarded(0).Audit.size()
	usual, most := AuditBytes/one, AuditMost/one
	for _, c := range []struct {
		name       string
		entries    int64 // how many entries there are
		stored     int64 // how many of them the global tier has stored
		late       bool  // the last one comes after 31 days
		base, lost int64
	}{
		{"few, and none is stored", 10, 0, false, 0, 0},
		{"few old ones, and none is stored", 10, 0, true, 0, 0},
		{"few old ones, some are stored", 10, 4, true, 4, 0},
		{"more than usual, and none is stored", usual + 10, 0, false, 0, 0},
		{"more than usual, and all are stored", usual + 10, usual + 9, false, 10, 0},
		{"more than usual, and a few are stored", usual + 10, 3, false, 3, 0},
		{"more than the hard bound, and none is stored", most + 10, 0, false, 10, 10},
		{"more than the hard bound, and a few were stored late", most + 10, 4, false, 10, 10},
	} {
		l := newLog(t)
		for range c.entries - 1 {
			l.ok(forwarded(0))
		}
		if c.late {
			l.now += int64(AuditAge) + second
		}
		l.ok(forwarded(c.stored))
		a := l.Audit()
		if a.Base().Size != c.base || a.Lost() != c.lost || a.Stored() != c.stored || rootOf(&l.View) != a.Tree().Root() {
			t.Errorf("%s: %d entries were removed, %d lost, %d stored, want %d, %d, %d", c.name, a.Base().Size, a.Lost(), a.Stored(), c.base, c.lost, c.stored)
		}
		restored, err := Restore(seq(recordsOf(l.Snapshot())))
		if err != nil || restored.Snapshot().Hash() != l.Snapshot().Hash() || restored.Audit().Lost() != a.Lost() || restored.Audit().Stored() != a.Stored() {
			t.Errorf("%s: restored %+v: %v", c.name, restored.Audit(), err)
		}
		if e, ok := firstOf(&l.View); !ok || e.Stored != 0 || e.Retain != 0 {
			t.Errorf("%s: an entry of the trail has what only the command has", c.name)
		}
	}
}

func firstOf(v *View) (*AuditEntry, bool) {
	for e := range v.Audit().Entries() {
		return e, true
	}
	return nil, false
}

// TestAuditRetention: the entries are kept as long as the latest command says.
func TestAuditRetention(t *testing.T) {
	l := newLog(t)
	kept := func(verb string, retain time.Duration) Command {
		c := audited(Command{}, verb)
		c.Audit.Retain = retain
		return c
	}
	l.ok(kept("one", time.Hour))
	l.now += int64(30 * time.Minute)
	l.ok(kept("two", time.Hour))
	l.now += int64(45 * time.Minute)
	l.ok(kept("three", time.Hour))
	if got := trailOf(&l.View); got != "2 two, 3 three" {
		t.Errorf("with an hour: %s", got)
	}
	l.ok(kept("four", time.Minute))
	if got := trailOf(&l.View); got != "3 three, 4 four" {
		t.Errorf("with a minute: %s", got)
	}
}

// TestAuditOfEarlierVersions: as long as no command has the number of stored entries, entries are
// removed as by earlier versions.
func TestAuditOfEarlierVersions(t *testing.T) {
	l := newLog(t)
	l.ok(audited(Command{}, "one"))
	l.now += int64(AuditAge) + second
	l.ok(audited(Command{}, "two"))
	if got := trailOf(&l.View); got != "2 two" || l.Audit().Lost() != 0 {
		t.Errorf("the trail is %s, %d lost", got, l.Audit().Lost())
	}
}
