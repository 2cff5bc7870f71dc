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

// smallFiles lets the log begin new files often.
func smallFiles(tb testing.TB) {
	before := wal.SegmentSizeBytes
	wal.SegmentSizeBytes = 64 << 10
	tb.Cleanup(func() { wal.SegmentSizeBytes = before })
}

func reopenWAL(tb testing.TB, dir string) *walLog {
	tb.Helper()
	if !wal.Exist(dir) {
		l, err := createWAL(dir, quiet())
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	l, err := openWAL(dir, quiet())
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// oracle is what a log should hold.
type oracle []raft.Log

func (o oracle) next() uint64 {
	if len(o) == 0 {
		return 1
	}
	return o[len(o)-1].Index + 1
}

// entries are n new ones, with noise, or zeros, in them.
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

// differs says how a log differs; empty means that it does not.
func (o oracle) differs(l *walLog) string {
	first, _ := l.FirstIndex()
	last, _ := l.LastIndex()
	if len(o) == 0 {
		if first != 0 || last != 0 {
			return fmt.Sprintf("it holds %d to %d, want nothing", first, last)
		}
		return ""
	}
	if first != o[0].Index || last != o.next()-1 {
		return fmt.Sprintf("it holds %d to %d, want %d to %d", first, last, o[0].Index, o.next()-1)
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
		return "it holds more than it says"
	}
	return ""
}

// step does something to a log and says what the oracle is then, and every state
// in which the log may come back if the disk held only a part of it.
func step(r *rand.Rand, l *walLog, o oracle) (after oracle, part []oracle, err error) {
	term := l.number // rises
	switch op := r.IntN(20); {
	case op < 14 || len(o) == 0:
		next := o.next() + uint64(r.IntN(2)*r.IntN(2)*r.IntN(2)*1000)
		if len(o) > 0 && r.IntN(30) > 0 {
			next = o.next()
		}
		logs := entries(r, next, term, 1+r.IntN(5))
		base := o
		if next != o.next() {
			base = nil // a gap: Raft has a snapshot of what was before
		}
		part = append(part, o)
		for n := range logs {
			part = append(part, base.plus(logs[:n+1]))
		}
		return part[len(part)-1], part, l.StoreLogs(logs)
	case op < 17: // the beginning
		n := 1 + r.IntN(len(o))
		after = slices.Clone(o[n:])
		return after, []oracle{o, after}, l.DeleteRange(o[0].Index, o[n-1].Index)
	case op < 19: // the end
		n := r.IntN(len(o))
		after = slices.Clone(o[:n])
		return after, []oracle{o, after}, l.DeleteRange(o[n].Index, o.next()-1)
	default:
		return nil, []oracle{o, nil}, l.DeleteRange(0, o.next()+7)
	}
}

// Whatever is stored, deleted, closed and copied away in between: the log holds
// what a plain slice does.
func TestWALAgainstSlice(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	smallFiles(t)
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		dir := filepath.Join(t.TempDir(), "log")
		l := reopenWAL(t, dir)
		var o oracle
		for range 150 {
			var err error
			if o, _, err = step(r, l, o); err != nil {
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
				l = reopenWAL(t, dir)
			case 1: // as if killed here
				c := reopenWAL(t, copyDir(t, dir))
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
		if names := glob(dir, "*"); len(names) > 2 {
			t.Fatalf("seed %d: %d files are left of an empty log", seed, len(names))
		}
	}
}

func copyDir(tb testing.TB, dir string) string {
	tb.Helper()
	to := filepath.Join(tb.TempDir(), "log")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		tb.Fatal(err)
	}
	return to
}

// tail reads the newest file.
func tail(tb testing.TB, dir string) (name string, content []byte) {
	tb.Helper()
	names := glob(dir, "*.wal")
	name = names[len(names)-1]
	content, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	return filepath.Base(name), content
}

// written is the range of a file that a write changed.
func written(before, after []byte) (from, to int) {
	for from < len(before) && from < len(after) && before[from] == after[from] {
		from++
	}
	return from, len(bytes.TrimRight(after, "\x00"))
}

// A write of which a power cut left some sectors, or the beginning, comes back in
// part, and what was before it in full; the log takes more afterwards.
func TestWALTornWrite(t *testing.T) {
	smallFiles(t)
	const sector = 512
	for seed := range uint64(2) {
		r := rand.New(rand.NewPCG(seed, 2))
		dir := filepath.Join(t.TempDir(), "log")
		l := reopenWAL(t, dir)
		var o oracle
		for range 15 {
			name, before := tail(t, dir)
			then := copyDir(t, dir) // files come and go only after a sync
			after, part, err := step(r, l, o)
			if err != nil {
				t.Fatal(err)
			}
			o = after
			content, err := os.ReadFile(filepath.Join(dir, name))
			from, to := written(before, content)
			if errors.Is(err, os.ErrNotExist) || from >= to {
				continue // with the file, what it held was deleted
			}
			for at := from; at < to; at = (at/sector + 1) * sector {
				scattered := slices.Clone(content)
				for s := at; s < to; s = (s/sector + 1) * sector {
					if s == at || r.IntN(2) == 0 {
						clear(scattered[s:min(to, (s/sector+1)*sector)])
					}
				}
				zeroed := slices.Clone(content)
				clear(zeroed[at:])
				for kind, torn := range [][]byte{content[:at], zeroed, scattered} {
					checkTorn(t, then, name, torn, part, fmt.Sprintf("seed %d, %d of %d to %d, kind %d", seed, at, from, to, kind))
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func checkTorn(t *testing.T, dir, name string, torn []byte, part []oracle, what string) {
	t.Helper()
	dir = copyDir(t, dir)
	if err := os.WriteFile(filepath.Join(dir, name), torn, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := openWAL(dir, quiet())
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
	c = reopenWAL(t, dir)
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

// A bit that flips in what was acknowledged before the last write is an error, or
// does not matter; it never makes the log shorter.
func TestWALFlippedBit(t *testing.T) {
	smallFiles(t)
	r := rand.New(rand.NewPCG(3, 3))
	dir := filepath.Join(t.TempDir(), "log")
	l := reopenWAL(t, dir)
	var o oracle
	for o.next() < 80 {
		var err error
		if o, _, err = step(r, l, o); err != nil {
			t.Fatal(err)
		}
	}
	name, before := tail(t, dir)
	logs := []*raft.Log{{Index: o.next(), Term: 1 << 20, Data: []byte("the last write")}}
	if err := errors.Join(l.StoreLogs(logs), l.Close()); err != nil {
		t.Fatal(err)
	}
	o = o.plus(logs)
	if now, _ := tail(t, dir); now != name {
		t.Fatal("choose another seed: the last write is alone in its file")
	}
	end := len(bytes.TrimRight(before, "\x00"))
	loud := 0
	const flips = 600
	for range flips {
		names := glob(dir, "*.wal")
		victim := names[r.IntN(len(names))]
		content, err := os.ReadFile(victim)
		if err != nil {
			t.Fatal(err)
		}
		n := len(content)
		if filepath.Base(victim) == name {
			n = end
		}
		bit := r.IntN(8 * n)
		if r.IntN(2) == 0 { // lengths, types, checksums
			bit = 8 * (bit / 64 * 8)
			bit = min(bit+r.IntN(24*8), 8*n-1)
		}
		c := copyDir(t, dir)
		content[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(filepath.Join(c, filepath.Base(victim)), content, 0o600); err != nil {
			t.Fatal(err)
		}
		what := fmt.Sprintf("bit %d of byte %d of %s", bit%8, bit/8, filepath.Base(victim))
		got, err := openWAL(c, quiet())
		if err != nil {
			loud++
		} else {
			if diff := o.differs(got); diff != "" {
				t.Errorf("%s: %s", what, diff)
			}
			if err := got.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.RemoveAll(c); err != nil {
			t.Fatal(err)
		}
	}
	if loud < flips/2 {
		t.Errorf("only %d of %d flips were seen", loud, flips)
	}
}

// Entries that Raft would never store are refused, and do no harm.
func TestWALRefuses(t *testing.T) {
	l := reopenWAL(t, filepath.Join(t.TempDir(), "log"))
	defer l.Close()
	if err := l.StoreLogs([]*raft.Log{{Index: 5, Term: 1}, {Index: 6, Term: 1}, {Index: 7, Term: 1}}); err != nil {
		t.Fatal(err)
	}
	if l.StoreLog(&raft.Log{Index: 7}) == nil || l.StoreLogs([]*raft.Log{{Index: 8}, {Index: 10}}) == nil || l.DeleteRange(6, 6) == nil {
		t.Fatal("an overlap, a gap or a hole was accepted")
	}
	if err := l.StoreLog(&raft.Log{Index: 8, Term: 1}); err != nil {
		t.Fatal(err)
	}
	if n := l.newest(0); n != 4 { // they are empty
		t.Fatalf("the newest are %d", n)
	}
}

// After an error nothing is written any more.
func TestWALFails(t *testing.T) {
	l := reopenWAL(t, filepath.Join(t.TempDir(), "log"))
	if err := l.StoreLog(&raft.Log{Index: 1, Term: 1}); err != nil {
		t.Fatal(err)
	}
	if err := l.wal.Close(); err != nil { // so that the sync fails
		t.Fatal(err)
	}
	first := l.StoreLog(&raft.Log{Index: 2, Term: 1})
	if first == nil || !errors.Is(l.StoreLog(&raft.Log{Index: 2, Term: 1}), first) || !errors.Is(l.DeleteRange(1, 1), first) {
		t.Fatalf("it goes on after %v", first)
	}
	if last, _ := l.LastIndex(); last != 1 {
		t.Fatalf("the last entry is %d", last)
	}
}
