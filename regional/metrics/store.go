package metrics

import (
	"context"
	"log/slog"
	"sync"

	"github.com/nusa-scheduler/nusa/internal/series"
)

// Store is the file with the values that a server measured while it was the master. Each
// server has its own file. A new master continues the file with the values of its earlier
// terms. A failure of the file stops no server.
type Store struct {
	mu              sync.Mutex
	series          *series.Store // nil while no file is open
	why             string        // why no file is open
	reportedDamaged uint64        // how many damaged files newlyDamaged has returned
}

// NewStore returns a store that has no file yet.
func NewStore() *Store { return &Store{why: "the history file is still being opened"} }

// Open returns the open file, or nil and the reason when no file is open.
func (s *Store) Open() (*series.Store, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.series, s.why
}

func (s *Store) set(store *series.Store, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.series, s.why = store, why
}

// newlyDamaged returns how many damaged files were set aside since the last call.
func (s *Store) newlyDamaged() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	aside := uint64(s.series.Stats().SetAside)
	fresh := aside - min(s.reportedDamaged, aside)
	s.reportedDamaged = aside
	return int(fresh)
}

// Run opens the file at path, and closes the file when ctx ends. An empty path stands for a
// server without a disk. A negative limits.Bytes turns the store off. Opening may take a
// while, for example after a limit was lowered, so no other part waits for Run.
func (s *Store) Run(ctx context.Context, path string, limits series.Limits, log *slog.Logger) error {
	switch {
	case path == "":
		s.set(nil, "this server has no disk, and so no history")
	case limits.Bytes < 0:
		s.set(nil, "history is turned off on this server")
	default:
		s.openFile(path, limits, log)
	}
	<-ctx.Done()
	store, _ := s.Open()
	s.set(nil, "this server stops")
	if err := store.Close(); err != nil {
		log.Warn("the last minute of history was not written", "error", err)
	}
	return nil
}

func (s *Store) openFile(path string, limits series.Limits, log *slog.Logger) {
	store, err := series.Open(path, Kinds, limits, log)
	if err != nil {
		log.Warn("the server has no history", "error", err)
		s.set(nil, err.Error())
		return
	}
	s.set(store, "")
}
