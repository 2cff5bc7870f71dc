package tasks

import (
	"log/slog"
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
