package tasks

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// flip changes a byte of a file.
func flip(t *testing.T, path string, at func(size int) int) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw[at(len(raw))] ^= 0x5a
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// segmentsOf writes a history with segments and live allocations.
func segmentsOf(t *testing.T, w *world) (*Store, *Recorder) {
	t.Helper()
	s, r := w.newStore(Limits{Count: leastCount})
	for range 300 {
		w.step()
	}
	w.write(r)
	if err := s.rotate(w.clock(), 0); err != nil {
		t.Fatal(err)
	}
	if len(s.segments) == 0 || len(s.recent.order) == 0 {
		t.Fatal("the test needs segments and live allocations")
	}
	return s, r
}

// TestGapOfADamagedSegmentOutlivesACrash: a server that stops after it has found a damaged segment, or cannot write
// then, still tells the gap.
func TestGapOfADamagedSegmentOutlivesACrash(t *testing.T) {
	t.Parallel()
	last := func(size int) int { return size - 40 }
	t.Run("found when it is opened", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 21)
		s, _ := segmentsOf(t, w)
		path := s.segments[0].path
		s.close("restart")
		flip(t, path, last)
		var o opened
		if err := s.openFiles(&o); err != nil {
			t.Fatal(err)
		}
		o.close() // the crash
		for range 2 {
			if err := s.open(); err != nil {
				t.Fatal(err)
			}
			if gaps := s.position().GetGaps(); len(gaps) != 1 || gaps[0].GetWhy() != damagedWhy {
				t.Fatalf("%v", gaps)
			}
			s.close("restart")
		}
	})
	t.Run("found by a reader", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 22)
		s, r := segmentsOf(t, w)
		s.segments[0].damaged.Store(true)
		failed := errors.New("the disk is full")
		if err := s.update(func(*batch) error { return failed }); !errors.Is(err, failed) {
			t.Fatal(err)
		}
		s.close("the disk is full")
		if err := s.open(); err != nil {
			t.Fatal(err)
		}
		w.write(r)
		if _, err := os.Stat(s.path + damagedName); err == nil && len(s.position().GetGaps()) == 0 {
			t.Error("a segment is set aside, and no gap says so")
		}
		w.check(s)
	})
}

// TestDamagedJournalOnAFullDisk: the history reads the log again also if the next journal could not be written at once.
func TestDamagedJournalOnAFullDisk(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(path string){
		"damaged": func(path string) { flip(t, path, func(int) int { return len(journalMark) + 20 }) },
		"gone":    func(path string) { _ = os.Remove(path) },
	} {
		w := newWorld(t, 23)
		s, r := segmentsOf(t, w)
		path := s.journalPath(s.sequence)
		s.close("restart")
		spoil(path)
		// Nothing can be written: folders have the names of the files that would be written next.
		for next := s.sequence - 2; next < s.sequence+2; next++ {
			if err := os.MkdirAll(filepath.Join(s.journalPath(next)+".tmp", "x"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.open(); err == nil || !strings.Contains(err.Error(), ".tmp") {
			t.Fatalf("%s: %v", what, err)
		}
		for next := s.sequence - 2; next < s.sequence+2; next++ {
			if err := os.RemoveAll(s.journalPath(next) + ".tmp"); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.open(); err != nil {
			t.Fatal(err)
		}
		w.write(r)
		w.check(s)
	}
}

// TestForeignFiles: copies of files that an operator left in the folder are not used.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 24)
	s, r := segmentsOf(t, w)
	s.close("restart")
	for _, name := range []string{"00000099.journal.bak", "00000001-1-9.segment.old", "99.journal"} {
		if err := os.WriteFile(filepath.Join(s.path, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	w.step()
	w.write(r)
	w.check(s)
}

// TestRetentionOnAFullDisk: old segments are removed also while the journal cannot become segments, which gives room.
func TestRetentionOnAFullDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 25)
	s, r := segmentsOf(t, w)
	for s.recent.ended == 0 {
		w.step()
		w.write(r)
	}
	for next := s.sequence; next < s.sequence+8; next++ {
		if err := os.MkdirAll(filepath.Join(s.journalPath(next)+".tmp", "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	late := w.clock().Add(2 * s.limits.Age)
	if !s.due(late) {
		t.Fatal("the test needs a journal that should become segments")
	}
	if err := s.trim(late); err == nil {
		t.Error("nothing failed")
	}
	if n := len(s.segments); n > 0 {
		t.Errorf("%d segments are left", n)
	}
}

// TestSegmentsAreFew: the files that are open do not grow with the records that may be kept.
func TestSegmentsAreFew(t *testing.T) {
	for _, n := range []int64{leastCount, DefaultCount, 8 * DefaultCount} {
		if l := (Limits{Count: n}); n/int64(l.full()) > mostSegments {
			t.Errorf("%d records have %d segments", n, n/int64(l.full()))
		}
	}
}
