package quorum

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/goleak"
)

func quiet() hclog.Logger { return newLogger(slog.New(slog.DiscardHandler)) }

// smallFiles makes the write-ahead log begin new files often.
func smallFiles(tb testing.TB) {
	before := wal.SegmentSizeBytes
	wal.SegmentSizeBytes = 64 << 10
	tb.Cleanup(func() { wal.SegmentSizeBytes = before })
}

// forEachLog runs a test with both kinds of log.
func forEachLog(t *testing.T, test func(t *testing.T, kind LogKind)) {
	for _, kind := range []LogKind{WAL, BoltDB} {
		t.Run(string(kind), func(t *testing.T) {
			smallFiles(t)
			test(t, kind)
		})
	}
}

// reopen opens the log in a folder. If there is none, it makes a new one.
func reopen(tb testing.TB, kind LogKind, dir string) logStore {
	tb.Helper()
	l := layout{dir, quiet()}
	var err error
	if !l.exists(kind) {
		err = errors.Join(os.MkdirAll(dir, 0o700), l.create(kind, raft.NewInmemStore()))
	}
	var log logStore
	if err == nil {
		log, err = l.open(kind)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return log
}

// oracle is the content that a log should have.
type oracle []raft.Log

func (o oracle) next() uint64 {
	if len(o) == 0 {
		return 1
	}
	return o[len(o)-1].Index + 1
}

// entries returns n new entries that hold noise or zeros.
func entries(r *rand.Rand, from, term uint64, n int) (logs []*raft.Log) {
	for i := range n {
		data := make([]byte, r.IntN(1<<r.IntN(14)))
		if r.IntN(4) > 0 {
			for j := range data {
				data[j] = byte(r.Uint32())
			}
		}
		g := &raft.Log{Index: from + uint64(i), Term: term, Type: raft.LogType(r.IntN(6)), Data: data}
		if r.IntN(2) > 0 {
			g.AppendedAt = time.Unix(0, r.Int64())
		}
		if r.IntN(8) == 0 {
			g.Extensions = []byte("extended")
		}
		logs = append(logs, g)
	}
	return logs
}

func (o oracle) plus(logs []*raft.Log) oracle {
	o = slices.Clone(o)
	for _, g := range logs {
		o = append(o, *g)
	}
	return o
}

// differs describes how a log differs from the oracle. It is empty if they are equal.
func (o oracle) differs(l raft.LogStore) string {
	first, _ := l.FirstIndex()
	last, _ := l.LastIndex()
	if len(o) == 0 {
		if first != 0 || last != 0 {
			return fmt.Sprintf("the log holds %d to %d, want nothing", first, last)
		}
		return ""
	}
	if first != o[0].Index || last != o.next()-1 {
		return fmt.Sprintf("the log holds %d to %d, want %d to %d", first, last, o[0].Index, o.next()-1)
	}
	for _, want := range o {
		var got raft.Log
		if err := l.GetLog(want.Index, &got); err != nil {
			return fmt.Sprintf("entry %d: %v", want.Index, err)
		}
		if got.Index != want.Index || got.Term != want.Term || got.Type != want.Type || !got.AppendedAt.Equal(want.AppendedAt) ||
			!bytes.Equal(got.Data, want.Data) || !bytes.Equal(got.Extensions, want.Extensions) {
			return fmt.Sprintf("entry %d differs", want.Index)
		}
	}
	var none raft.Log
	if !errors.Is(l.GetLog(first-1, &none), raft.ErrLogNotFound) || !errors.Is(l.GetLog(last+1, &none), raft.ErrLogNotFound) {
		return "the log holds more than it says"
	}
	return ""
}

// step changes a log at random. It returns the new oracle. It also returns every state that
// the log may have after a power cut in which only a part of the change reached the disk.
func step(r *rand.Rand, l logStore, o oracle) (after oracle, part []oracle, err error) {
	term := r.Uint64() >> 1
	switch op := r.IntN(20); {
	case op < 14 || len(o) == 0:
		next := o.next() + uint64(r.IntN(2)*r.IntN(2)*r.IntN(2)*1000)
		if len(o) > 0 && r.IntN(30) > 0 {
			next = o.next()
		}
		logs := entries(r, next, term, 1+r.IntN(5))
		base := o
		if next != o.next() {
			base = nil // a gap: Raft has a snapshot of the earlier entries
		}
		part = append(part, o)
		for n := range logs {
			part = append(part, base.plus(logs[:n+1]))
		}
		return part[len(part)-1], part, l.StoreLogs(logs)
	case op < 17: // at the start
		n := 1 + r.IntN(len(o))
		after = slices.Clone(o[n:])
		return after, []oracle{o, after}, l.DeleteRange(o[0].Index, o[n-1].Index)
	case op < 19: // at the end
		n := r.IntN(len(o))
		after = slices.Clone(o[:n])
		return after, []oracle{o, after}, l.DeleteRange(o[n].Index, o.next()-1)
	default:
		return nil, []oracle{o, nil}, l.DeleteRange(0, o.next()+7)
	}
}

// TestLogEqualsSlice: after any sequence of writes, deletions, restarts and kills, a log
// holds the same entries as a slice.
func TestLogEqualsSlice(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	forEachLog(t, func(t *testing.T, kind LogKind) {
		for seed := range uint64(4) {
			r := rand.New(rand.NewPCG(seed, 1))
			dir := t.TempDir()
			l := reopen(t, kind, dir)
			var o oracle
			for range 150 {
				var err error
				o, _, err = step(r, l, o)
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if diff := o.differs(l); diff != "" {
					t.Fatalf("seed %d: %s", seed, diff)
				}
				switch r.IntN(8) {
				case 0:
					if err := l.Close(); err != nil {
						t.Fatal(err)
					}
					l = reopen(t, kind, dir)
				case 1: // like a kill at this point
					c := reopen(t, kind, copyDir(t, dir))
					if diff := o.differs(c); diff != "" {
						t.Fatalf("seed %d, killed: %s", seed, diff)
					}
					if err := c.Close(); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := errors.Join(l.DeleteRange(0, o.next()), l.Close()); err != nil {
				t.Fatal(err)
			}
			if names := glob(filepath.Join(dir, "log"), "*"); len(names) > 2 {
				t.Fatalf("seed %d: %d files are left of an empty log", seed, len(names))
			}
		}
	})
}

func copyDir(tb testing.TB, dir string) string {
	tb.Helper()
	to := filepath.Join(tb.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		tb.Fatal(err)
	}
	return to
}

// tail returns the file that a log writes to, relative to its folder.
func tail(tb testing.TB, kind LogKind, dir string) (name string, content []byte) {
	tb.Helper()
	name = "log.db"
	if kind == WAL {
		names := glob(filepath.Join(dir, "log"), "*.wal")
		name = filepath.Join("log", filepath.Base(names[len(names)-1]))
	}
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		tb.Fatal(err)
	}
	return name, content
}

const sector = 512

// tornWAL returns the files that a power cut may leave after a write: only the start of the
// write, or some of its sectors.
func tornWAL(r *rand.Rand, before, after []byte) (torn [][]byte) {
	from, to := written(before, after)
	for at := from; at < to; at = (at/sector + 1) * sector {
		scattered := slices.Clone(after)
		for s := at; s < to; s = (s/sector + 1) * sector {
			if s == at || r.IntN(2) == 0 {
				clear(scattered[s:min(to, (s/sector+1)*sector)])
			}
		}
		zeroed := slices.Clone(after)
		clear(zeroed[at:])
		torn = append(torn, slices.Clone(after[:at]), zeroed, scattered)
	}
	return torn
}

// tornBolt returns the files that a power cut may leave after one transaction of bbolt:
// some sectors of the data without the meta page, or all data with a part of the meta page.
// bbolt first syncs the new size of the file, then the data, then the meta page.
func tornBolt(r *rand.Rand, before, after []byte) (torn [][]byte) {
	page := os.Getpagesize()
	before = append(slices.Clone(before), make([]byte, max(0, len(after)-len(before)))...)
	changed := func(from, to int) bool { return !bytes.Equal(before[from:to], after[from:to]) }
	if changed(0, page) && changed(page, 2*page) {
		return nil // a gap takes two transactions: the first deletes
	}
	for range 8 {
		mixed := slices.Clone(before)
		for s := 2 * page; s < len(after); s += sector {
			if r.IntN(2) == 0 {
				copy(mixed[s:min(len(after), s+sector)], after[s:])
			}
		}
		torn = append(torn, mixed)
	}
	for at := range 10 { // a meta page has 80 bytes
		mixed := slices.Clone(after)
		for _, meta := range []int{0, page} {
			copy(mixed[meta+8*at:meta+page], before[meta+8*at:meta+page])
		}
		torn = append(torn, mixed)
	}
	return torn
}

// written returns the range of a file that a write changed.
func written(before, after []byte) (from, to int) {
	for from < len(before) && from < len(after) && before[from] == after[from] {
		from++
	}
	return from, len(bytes.TrimRight(after, "\x00"))
}

// TestLogSurvivesTornWrite: after a power cut in the middle of a write, the log holds all
// earlier entries and a part of that write. It accepts more entries.
func TestLogSurvivesTornWrite(t *testing.T) {
	forEachLog(t, func(t *testing.T, kind LogKind) {
		states := 0
		for seed := range uint64(2) {
			r := rand.New(rand.NewPCG(seed, 2))
			dir := t.TempDir()
			l := reopen(t, kind, dir)
			var o oracle
			for range 15 {
				name, before := tail(t, kind, dir)
				then := copyDir(t, dir) // files come and go only after a sync
				after, part, err := step(r, l, o)
				if err != nil {
					t.Fatal(err)
				}
				o = after
				content, err := os.ReadFile(filepath.Join(dir, name))
				if errors.Is(err, os.ErrNotExist) {
					continue // the entries were deleted with the file
				}
				torn := tornWAL
				if kind == BoltDB {
					torn = tornBolt
				}
				for i, file := range torn(r, before, content) {
					states++
					checkTorn(t, kind, then, name, file, part, fmt.Sprintf("seed %d, entry %d, torn in way %d", seed, o.next()-1, i))
				}
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if states < 200 {
			t.Errorf("only %d torn files were tried", states)
		}
	})
}

func checkTorn(t *testing.T, kind LogKind, dir, name string, torn []byte, part []oracle, what string) {
	t.Helper()
	dir = copyDir(t, dir)
	if err := os.WriteFile(filepath.Join(dir, name), torn, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := layout{dir, quiet()}.open(kind)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	i := slices.IndexFunc(part, func(o oracle) bool { return o.differs(c) == "" })
	if i < 0 {
		t.Fatalf("%s: not a part: %s", what, part[0].differs(c))
	}
	more := entries(rand.New(rand.NewPCG(1, 1)), part[i].next(), 99, 2)
	if err := errors.Join(c.StoreLogs(more), c.Close()); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	c = reopen(t, kind, dir)
	if diff := part[i].plus(more).differs(c); diff != "" {
		t.Fatalf("%s: then %s", what, diff)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
}

// TestLogRefusesGapsAndOverlaps: entries that Raft would never store are refused, and the
// log stays usable.
func TestLogRefusesGapsAndOverlaps(t *testing.T) {
	forEachLog(t, func(t *testing.T, kind LogKind) {
		l := reopen(t, kind, t.TempDir())
		defer l.Close()
		if err := l.StoreLogs([]*raft.Log{{Index: 5, Term: 1}, {Index: 6, Term: 1}, {Index: 7, Term: 1}}); err != nil {
			t.Fatal(err)
		}
		if l.StoreLog(&raft.Log{Index: 7}) == nil || l.StoreLogs([]*raft.Log{{Index: 8}, {Index: 10}}) == nil || l.DeleteRange(6, 6) == nil {
			t.Fatal("an overlap, a gap or a hole was accepted")
		}
		if err := l.StoreLog(&raft.Log{Index: 8, Term: 1, Data: []byte("three")}); err != nil {
			t.Fatal(err)
		}
		for bytes, want := range map[int]uint64{0: 0, 4: 0, 5: 4} { // the other entries are empty
			if n := l.newest(bytes); n != want {
				t.Errorf("%d bytes are the newest %d entries, want %d", bytes, n, want)
			}
		}
	})
}

// TestLogStopsAfterFailedWrite: after a failed write the log refuses all later writes with
// the same error.
func TestLogStopsAfterFailedWrite(t *testing.T) {
	forEachLog(t, func(t *testing.T, kind LogKind) {
		l := reopen(t, kind, t.TempDir())
		if err := l.StoreLog(&raft.Log{Index: 1, Term: 1}); err != nil {
			t.Fatal(err)
		}
		breakLog(t, l)
		first := l.StoreLog(&raft.Log{Index: 2, Term: 1})
		if first == nil || !errors.Is(l.StoreLog(&raft.Log{Index: 2, Term: 1}), first) || !errors.Is(l.DeleteRange(1, 1), first) {
			t.Fatalf("the log goes on after %v", first)
		}
		if last, _ := l.LastIndex(); kind == WAL && last != 1 { // bbolt cannot read a closed file
			t.Fatalf("the last entry is %d, want 1", last)
		}
		if err := <-l.brokenCh(); !errors.Is(err, first) {
			t.Fatalf("%v was reported, want %v", err, first)
		}
	})
}

// breakLog closes the file of an open log, so that the next write fails.
func breakLog(t *testing.T, l logStore) {
	t.Helper()
	var err error
	switch l := l.(type) {
	case *walLog:
		l.write.Lock()
		err = l.wal.Close()
		l.write.Unlock()
	case *boltLog:
		err = l.BoltStore.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}
