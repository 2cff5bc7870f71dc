package trail

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// log is a state with a trail.
type log struct {
	s     *state.State
	index uint64
}

func newLog(t *testing.T, level uint32) *log {
	t.Helper()
	l := &log{s: state.New()}
	l.do(state.Command{Bootstrap: &state.Bootstrap{ClusterID: "c", Region: "alpha"}})
	l.do(state.Command{SetLimits: &state.SetLimits{FeatureLevel: level, NodeLease: time.Second}})
	return l
}

func (l *log) do(cmd state.Command) {
	l.index++
	cmd.NowUnixNano = int64(l.index) * int64(time.Second)
	l.s.Apply(l.index, cmd)
}

// add adds entries of about this many bytes.
func (l *log) add(n, bytes int) {
	for i := range n {
		l.do(state.Command{Audit: &state.AuditEntry{Verb: "exec", Name: fmt.Sprint(l.index, i), Reason: strings.Repeat("x", bytes)}})
	}
}

func (l *log) view() *state.View { return l.s.Snapshot() }

// all reads the whole trail part by part, from what is stored.
func all(t *testing.T, trail *Trail, view *state.View, stored audit.Tree) (parts, entries int, tree audit.Tree) {
	t.Helper()
	for {
		p := trail.Next(view, stored, true)
		if p.Forked || !p.Before.Equal(stored) {
			t.Fatalf("the part follows %d entries, not %d", p.Before.Size, stored.Size)
		}
		parts, entries, stored = parts+1, entries+len(p.Entries), p.After
		if !p.More {
			return parts, entries, stored
		}
	}
}

// TestParts: the parts have each entry once, within the bound, and end with the tree of the
// trail. What is stored reaches the commands of later entries.
func TestParts(t *testing.T) {
	l, trail := newLog(t, state.ForwardLevel), &Trail{Forwards: true, Retain: time.Hour}
	l.add(1000, 400)
	view := l.view()
	parts, entries, tree := all(t, trail, view, audit.Tree{})
	if entries != 1000 || !tree.Equal(view.Audit().Tree()) || parts < 1000*(400+256)/partBytes {
		t.Errorf("%d entries in %d parts, tree %d", entries, parts, tree.Size)
	}
	if p := trail.Next(view, tree, true); len(p.Entries) > 0 || p.More || p.Forked {
		t.Errorf("after the end: %+v", p)
	}
	var e state.AuditEntry
	trail.Complete(view, &e)
	if e.Stored != 1001 || e.Retain != time.Hour {
		t.Errorf("the next entry has %d, %s", e.Stored, e.Retain)
	}
}

// TestForks: a trail that does not have what is stored says so, and begins with its oldest entry.
func TestForks(t *testing.T) {
	l := newLog(t, state.ForwardLevel)
	l.add(10, 10)
	short := l.view()
	l.add(10, 10)
	long := l.view()
	other := newLog(t, state.ForwardLevel)
	other.add(15, 11)
	for _, c := range []struct {
		name   string
		view   *state.View
		stored audit.Tree
		same   bool
		before int64
		forked bool
	}{
		{"nothing is stored", long, audit.Tree{}, true, 0, false},
		{"a part is stored", long, short.Audit().Tree(), true, 10, false},
		{"more is stored than there is", short, long.Audit().Tree(), true, 0, true},
		{"other entries are stored", long, other.view().Audit().Tree(), true, 0, true},
		{"another trail is stored", long, other.view().Audit().Tree(), false, 0, false},
	} {
		for _, trail := range []*Trail{{}, {stored: short.Audit().Tree()}} {
			p := trail.Next(c.view, c.stored, c.same)
			if p.Before.Size != c.before || p.Forked != c.forked || p.After.Size != c.view.Audit().Tree().Size {
				t.Errorf("%s: %d to %d, forked %t", c.name, p.Before.Size, p.After.Size, p.Forked)
			}
		}
	}
}

// TestRemovedEntries: a trail that no longer has entries that follow the stored ones begins with its
// oldest one, and is not forked.
func TestRemovedEntries(t *testing.T) {
	l := newLog(t, state.ForwardLevel)
	l.add(2, 10)
	stored := l.view().Audit().Tree()
	l.add(3, 10)
	l.index += uint64(state.AuditAge / time.Second)
	l.add(2, 10)
	p := (&Trail{}).Next(l.view(), stored, true)
	if p.Before.Size != 5 || p.Forked || len(p.Entries) != 2 {
		t.Errorf("%d entries after %d, forked %t", len(p.Entries), p.Before.Size, p.Forked)
	}
}

// TestLevels: servers of earlier versions do not know what Complete adds.
func TestLevels(t *testing.T) {
	var e state.AuditEntry
	(&Trail{Forwards: true, Retain: time.Hour}).Complete(newLog(t, state.AuditLevel).view(), &e)
	(*Trail)(nil).Complete(newLog(t, state.ForwardLevel).view(), &e)
	if e.Stored != 0 || e.Retain != 0 {
		t.Errorf("%+v", e)
	}
	(&Trail{Retain: time.Hour}).Complete(newLog(t, state.ForwardLevel).view(), &e)
	if e.Stored != 0 || e.Retain != time.Hour {
		t.Errorf("without a global tier: %+v", e)
	}
}
