package tasks

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// TestReadersWhileTheFileGrows: bbolt maps a larger file when no reader is left, and a reader must not wait for that.
func TestReadersWhileTheFileGrows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 9)
	s := NewStore(filepath.Join(t.TempDir(), "tasks.db"), Limits{}, slog.New(slog.DiscardHandler))
	s.noSync = true
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	r := &Recorder{Log: w, Region: "sea", Store: s, Logger: s.log}
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
					if _, err := s.Retention("sea"); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 10 {
			w.submit(200)
			if _, err := r.write(t.Context()); err != nil {
				t.Error(err)
			}
		}
		close(stop)
		readers.Wait()
	}()
	select {
	case <-done:
		s.close("the test ends", false)
	case <-time.After(time.Minute):
		t.Fatal("a reader and the writer wait for each other")
	}
}

// TestDamagedPages: whatever pages are damaged, and whenever that is found, the server lives, and the next open
// begins with a file that can be written.
func TestDamagedPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10)
	s, r := w.newStore(Limits{})
	w.submit(100)
	w.write(r)
	s.close("damage", false)
	good, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	const page = 4096
	found := 0
	for i := range 40 {
		raw := bytes.Clone(good)
		for range 1 + w.rnd.IntN(3) {
			at := w.rnd.IntN(len(raw)/page) * page
			for j := range raw[at:][:64] {
				raw[at+j] ^= 0x5a
			}
		}
		if err := os.WriteFile(s.path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(s.path + ".damaged")
		if err := s.open(); err != nil {
			t.Fatal(i, err)
		}
		w.submit(1)
		_, err := r.write(t.Context())
		if err == nil {
			_, _ = s.list(query{allowed: func(string) bool { return true }}, nil, maxLimit, 1<<20)
			_, err = r.Store.trim(time.Unix(0, w.now))
			err = errors.Join(err, s.update(func(*batch) error { return nil }))
		}
		if err != nil && !errors.Is(err, errDamaged) {
			t.Fatal(i, err)
		}
		s.close("damage", err != nil)
		if _, err := os.Stat(s.path + ".damaged"); err == nil {
			found++
		}
	}
	if found < 20 {
		t.Errorf("%d of 40 damages were found", found)
	}
}
