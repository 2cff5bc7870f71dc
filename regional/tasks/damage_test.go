package tasks

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestReadersDuringWrites: readers and the writer wait for each other only shortly, also while a journal becomes segments.
func TestReadersDuringWrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 9)
	s := NewStore(filepath.Join(t.TempDir(), "tasks"), Limits{Count: 1000}, slog.New(slog.DiscardHandler))
	s.noSync = true
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	r := &Recorder{Log: w, Region: "sea", Store: s, Logger: s.log, now: w.clock}
	done, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					_, err := s.Retention("sea")
					_, failed := s.list(query{ListTasksRequest: &nusav1.ListTasksRequest{}, allowed: func(string) bool { return true }}, nil, maxLimit, maxSteps)
					if err = errors.Join(err, failed); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 10 {
			w.submit(20)
			for range 100 {
				w.report()
			}
			if _, err := r.write(t.Context()); err != nil {
				t.Error(err)
			}
		}
		close(stop)
		readers.Wait()
	}()
	select {
	case <-done:
		s.close("the test ends")
	case <-time.After(time.Minute):
		t.Fatal("a reader and the writer wait for each other")
	}
}

// TestDamagedFiles: whatever files are damaged, and whenever that is found, the server lives, tells its gaps and
// invents nothing. Another server's history completes it.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	damaged := 0
	for seed := range uint64(12) {
		w := newWorld(t, 10+seed)
		whole, all := w.newStore(Limits{Count: leastCount})
		s, r := w.newStore(Limits{Count: leastCount})
		for range 3 {
			for range 120 {
				w.step()
			}
			w.write(all)
			w.write(r)
		}
		w.purge()
		w.fast(state.MaxEvents) // the log does not have the events any more
		w.write(all)
		w.write(r)
		open := w.rnd.IntN(2) == 0
		if !open {
			s.close("damage")
		}
		files, err := os.ReadDir(s.path)
		if err != nil {
			t.Fatal(err)
		}
		for range 1 + w.rnd.IntN(2) {
			damage(t, w, filepath.Join(s.path, files[w.rnd.IntN(len(files))].Name()))
		}
		if !open {
			if err := s.open(); err != nil {
				t.Fatal(seed, err)
			}
		}
		for range 40 { // as the recorder does
			_, err := s.list(query{ListTasksRequest: &nusav1.ListTasksRequest{}, allowed: func(string) bool { return true }}, nil, maxLimit, 1<<20)
			w.submit(1)
			w.write(all)
			if _, failed := r.write(t.Context()); failed != nil {
				s.close("damage")
				if err := s.open(); err != nil {
					t.Fatal(seed, err)
				}
			} else if err == nil {
				break
			} else if !errors.Is(err, errDamaged) {
				t.Fatal(seed, err)
			}
		}
		for id, want := range w.want {
			got, err := s.find(id)
			if err != nil {
				t.Fatal(seed, err)
			}
			if rec := got.GetTask(); rec != nil && rec.State != want.State && rec.State != nusav1.AllocState_ALLOC_STATE_UNSPECIFIED {
				t.Fatalf("seed %d: %v, want %v", seed, rec, want)
			}
		}
		damaged += len(s.position().GetGaps())
		gaps := len(s.position().GetGaps())
		s.close("restart")
		if err := s.open(); err != nil || len(s.position().GetGaps()) != gaps {
			t.Fatal(seed, gaps, s.position().GetGaps(), err)
		}
		f := &Filler{Store: s, Logger: s.log}
		for _, gap := range s.position().GetGaps() {
			if _, err := f.copy(t.Context(), served{s: whole}, gap); err != nil {
				t.Fatal(seed, err)
			}
		}
		w.check(s)
	}
	if damaged < 5 {
		t.Errorf("%d gaps: the test shows little", damaged)
	}
}

// damage changes some bytes of a file, or cuts it off.
func damage(t *testing.T, w *world, path string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := w.rnd.IntN(len(raw))
	if w.rnd.IntN(3) == 0 {
		err = os.Truncate(path, int64(at))
	} else {
		for j := range raw[at:min(len(raw), at+64)] {
			raw[at+j] ^= 0x5a
		}
		err = os.WriteFile(path, raw, 0o600) // the server has it open still
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestCrashes: at whatever byte a crash cuts the journal, and wherever it stops the change to the next one, the
// history is complete once it has read the log again.
func TestCrashes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		w := newWorld(t, 50+seed)
		s, r := w.newStore(Limits{Count: leastCount})
		for range 2 {
			for range 80 {
				w.step()
			}
			w.write(r)
		}
		journal := s.journalPath(s.sequence)
		before, err := os.ReadFile(journal)
		if err != nil {
			t.Fatal(err)
		}
		if w.rnd.IntN(2) == 0 { // the crash comes before the former journal is removed, or before the next one exists
			if err := s.rotate(w.clock(), 0); err != nil {
				t.Fatal(err)
			}
			s.close("crash")
			if err := os.WriteFile(journal, before, 0o600); err != nil {
				t.Fatal(err)
			}
			if w.rnd.IntN(2) == 0 {
				if err := os.Rename(s.journalPath(s.sequence), journal+".tmp"); err != nil {
					t.Fatal(err)
				}
			}
		} else {
			s.close("crash")
			if err := os.Truncate(journal, int64(len(before)-w.rnd.IntN(len(before)))); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.open(); err != nil {
			t.Fatal(err)
		}
		w.write(r)
		w.check(s)
		if gaps := s.position().GetGaps(); len(gaps) > 0 {
			t.Fatalf("seed %d: %v", seed, gaps)
		}
	}
}

// TestFormerFileIsDropped: the history begins again, from the log and the other servers.
func TestFormerFileIsDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 7)
	s, r := w.newStore(Limits{})
	s.close("restart")
	if err := os.WriteFile(s.path+formerName, []byte("bbolt"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.path + formerName); err == nil {
		t.Error("it is still there")
	}
	w.submit(5)
	w.write(r)
	w.check(s)
}
