package api

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/auditwire"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

var ownKeys = [2]string{state.AuditPrefix, state.AuditEnd}

func anyRecord(*nusav1.AuditRecord) bool { return true }

// lists counts the lists of a store that run.
type lists struct {
	store.Store
	running, begun int
}

func (l *lists) Range(ctx context.Context, from, end string, visit func(store.KV) error) (int64, error) {
	l.running, l.begun = l.running+1, l.begun+1
	defer func() { l.running-- }()
	return l.Store.Range(ctx, from, end, visit)
}

func (l *lists) List(ctx context.Context, prefix string, visit func(store.KV) error) (int64, error) {
	l.running, l.begun = l.running+1, l.begun+1
	defer func() { l.running-- }()
	return l.Store.List(ctx, prefix, visit)
}

// storedTrail stores records of about 100 KiB each, and returns the tree of all entries.
func storedTrail(t *testing.T, s store.Store, records int) audit.Tree {
	t.Helper()
	var tree audit.Tree
	for i := range records {
		var entries []audit.Entry
		for range 200 {
			entries = append(entries, audit.Entry{Time: time.Unix(int64(i), 0), Verb: "submit", Kind: "job", Outcome: audit.Done, Reason: strings.Repeat("x", 500)})
		}
		var rec *nusav1.AuditRecord
		rec, tree = auditwire.Pack(tree, entries)
		value, err := state.Encode(rec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Txn(t.Context(), nil, []store.Op{store.Put(fmt.Sprintf("%s-e-%06d", state.AuditKey(time.Unix(int64(i), 0)), i), value)}); err != nil {
			t.Fatal(err)
		}
	}
	return tree
}

// TestExportSendsOutsideOfLists: while entries are sent to a client, which may not read them, no list
// of the store runs, because a list keeps the history of the store. All entries arrive in order.
func TestExportSendsOutsideOfLists(t *testing.T) {
	s := &lists{Store: store.NewMemory().Client()}
	tree := storedTrail(t, s, 30)
	later := int64(3)
	end := &nusav1.AuditCheckpoint{Trail: "t", Size: tree.Size - 200*later, Signed: "signed"}
	var got []string
	next := int64(1)
	x := exportOf{end: end, send: func(c *nusav1.AuditChunk) error {
		if s.running > 0 {
			t.Fatal("a message is sent while a list of the store runs")
		}
		switch {
		case c.GetHead() != nil:
			got = append(got, "head")
		case c.GetCheckpoint() != nil:
			got = append(got, "checkpoint")
		}
		for _, e := range c.GetPart().GetEntries() {
			if e.GetSeq() != next {
				t.Fatalf("entry %d, want %d", e.GetSeq(), next)
			}
			next++
		}
		return nil
	}}
	err := x.run(t.Context(), s, ownKeys, audit.Tree{Size: end.GetSize()}, anyRecord)
	if err != nil || strings.Join(got, " ") != "head checkpoint" || next != end.GetSize()+1 {
		t.Errorf("%q, entries up to %d of %d: %v", got, next-1, end.GetSize(), err)
	}
	if s.begun < 3 {
		t.Errorf("the trail was read with %d lists, so a large trail is held in memory", s.begun)
	}
}

// TestExportWithRemovedEntries: if entries are removed between two reads, the export fails, because
// its file would be damaged.
func TestExportWithRemovedEntries(t *testing.T) {
	s := store.NewMemory().Client()
	tree := storedTrail(t, s, 30)
	sent := 0
	x := exportOf{end: &nusav1.AuditCheckpoint{Trail: "t", Size: tree.Size}, send: func(*nusav1.AuditChunk) error {
		if sent++; sent == 2 {
			_, err := s.Txn(t.Context(), nil, []store.Op{store.DeleteRange(state.AuditPrefix, state.AuditKey(time.Unix(28, 0)))})
			return err
		}
		return nil
	}}
	err := x.run(t.Context(), s, ownKeys, tree, anyRecord)
	if status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "export again") {
		t.Errorf("%v after %d messages", err, sent)
	}
}

// TestListsShowOldEntries: a list shows all entries that are stored, however long they are kept.
func TestListsShowOldEntries(t *testing.T) {
	s := store.NewMemory().Client()
	now := time.Now()
	var tree audit.Tree
	for i, days := range []int{100, 50, 1} {
		at := now.AddDate(0, 0, -days)
		var rec *nusav1.AuditRecord
		rec, tree = auditwire.Pack(tree, []audit.Entry{{Time: at, Verb: "submit", Kind: "job", Outcome: audit.Done, Name: fmt.Sprint(days)}})
		own, err := state.Encode(rec)
		if err != nil {
			t.Fatal(err)
		}
		rec.Region = "eu"
		forwarded, err := state.Encode(rec)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Txn(t.Context(), nil, []store.Op{
			store.Put(fmt.Sprintf("%s-e-%06d", state.AuditKey(at), i), own), store.Put(state.ForwardedKey(at.UnixNano()), forwarded),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for what, req := range map[string]*nusav1.ListAuditRequest{"own": {}, "of all": {}, "of a region": {Region: "eu"}} {
		want := 3
		var page *nusav1.ListAuditResponse
		f, err := auditwire.FilterOf(req)
		switch {
		case err != nil:
		case what == "own":
			page, err = latest(t.Context(), s, f, now)
		default:
			page, err = latestOfAll(t.Context(), s, req, now)
		}
		if what == "of all" {
			want = 6
		}
		if err != nil || len(page.GetEntries()) != want || page.GetEntries()[want-1].GetName() != "100" {
			t.Errorf("%s: %v, %v", what, page, err)
		}
	}
	if page, err := latestOfAll(t.Context(), store.NewMemory().Client(), &nusav1.ListAuditRequest{}, now); err != nil || len(page.GetEntries()) > 0 {
		t.Errorf("an empty trail: %v, %v", page, err)
	}
}
