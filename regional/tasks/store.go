package tasks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/notify"
	"github.com/nusa-scheduler/nusa/internal/taskpage"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Defaults of Limits, and their least values.
const (
	leastCount   = 1000
	leastBytes   = 16 << 20
	DefaultCount = 1_000_000
	DefaultAge   = 30 * 24 * time.Hour
	DefaultBytes = 2 << 30
)

// Limits bound a history. The records that ended first are removed first. Records of allocations that
// have not ended are removed only by Count and Bytes, when no other is left.
type Limits struct {
	Count int64
	Age   time.Duration // counts from the end of an allocation
	Bytes int64         // of the file, without its free pages
}

// Filled returns the limits with the defaults for those that are 0.
func (l Limits) Filled() Limits {
	if l.Count == 0 {
		l.Count = DefaultCount
	}
	if l.Age == 0 {
		l.Age = DefaultAge
	}
	if l.Bytes == 0 {
		l.Bytes = DefaultBytes
	}
	return l
}

// Check returns an error for limits that cannot be.
func (l Limits) Check() error {
	l = l.Filled()
	switch {
	case l.Count < leastCount:
		return fmt.Errorf("%d tasks, at least %d are kept", l.Count, leastCount)
	case l.Age < time.Minute:
		return fmt.Errorf("an age of %v is below 1m", l.Age)
	case l.Bytes < leastBytes:
		return fmt.Errorf("%d bytes are below %d", l.Bytes, leastBytes)
	}
	return nil
}

// Store is the history of a server. It is safe for concurrent use.
type Store struct {
	path   string
	noSync bool // for tests
	limits Limits
	log    *slog.Logger
	mu     sync.RWMutex
	db     *file  // nil while no file is open
	why    string // why no file is open
	at     *nusav1.CopyTasksResponse
	count  int64
	// damaged: a reader found a damaged page. The next write ends with that error.
	damaged atomic.Bool
	// writing is held during a write.
	writing sync.Mutex
	// moved tells about each write.
	moved notify.Signal
}

// NewStore returns a store without an open file. An empty path stands for a server without a disk.
func NewStore(path string, limits Limits, log *slog.Logger) *Store {
	why := "the history of tasks is being opened"
	if path == "" {
		why = "this server has no disk, and so no history of tasks"
	}
	return &Store{path: path, limits: limits.Filled(), log: log, why: why, at: &nusav1.CopyTasksResponse{}}
}

// The keys of the meta bucket.
var (
	metaAt    = []byte("at")    // CopyTasksResponse: event, gaps and cluster
	metaCount = []byte("count") // number of records
)

// errClosed is the error of a store without an open file.
var errClosed = errors.New("no file is open")

// open opens the file, or sets a damaged one aside and begins a new one.
func (s *Store) open() error {
	db, err := openFile(s.path, s.noSync)
	if errors.Is(err, errDamaged) {
		s.log.Error("the history of tasks is damaged, a new one begins", "file", s.path, "aside", s.path+".damaged", "error", err)
		if err = setAside(s.path); err == nil {
			db, err = openFile(s.path, s.noSync)
		}
	}
	at, count := &nusav1.CopyTasksResponse{}, int64(0)
	if err == nil {
		err = guard(func() error {
			return db.View(func(tx *bolt.Tx) error {
				meta := tx.Bucket(metaBucket)
				if raw := meta.Get(metaCount); len(raw) == 8 {
					count = int64(binary.BigEndian.Uint64(raw))
				}
				return proto.Unmarshal(meta.Get(metaAt), at)
			})
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.why = err.Error()
		return err
	}
	s.damaged.Store(false)
	s.db, s.at, s.count, s.why = db, at, count, ""
	return nil
}

// close closes the file. damaged sets it aside, so that the next open begins a new one.
func (s *Store) close(why string, damaged bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = why
	if s.db == nil {
		return
	}
	db := s.db
	s.db = nil
	if err := db.close(); err != nil {
		s.log.Warn("close the history of tasks", "error", err)
	}
	if damaged {
		if err := setAside(s.path); err != nil {
			s.log.Error("set the history of tasks aside", "error", err)
		}
	}
}

// view reads the file.
func (s *Store) view(f func(*bolt.Tx) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.db == nil {
		return fmt.Errorf("%w: %s", errClosed, s.why)
	}
	err := guard(func() error { return s.db.View(f) })
	if errors.Is(err, errDamaged) {
		s.damaged.Store(true)
	}
	return err
}

// position returns the number of the latest event in the history, the gaps, and the cluster.
func (s *Store) position() *nusav1.CopyTasksResponse {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.at // never changed
}

func (s *Store) isOpen() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.db != nil
}

// Retention says what the history contains.
func (s *Store) Retention(region string) (*nusav1.TaskRetention, error) {
	out := &nusav1.TaskRetention{
		Region: region, Age: durationpb.New(s.limits.Age), Most: s.limits.Count, MostBytes: s.limits.Bytes,
	}
	err := s.view(func(tx *bolt.Tx) error {
		out.Count, out.Bytes, out.Gaps = s.count, used(s.db, tx), slices.Clone(s.at.GetGaps())
		if k, ok := firstKey(tx); ok {
			out.Oldest = timestamp(k.Placed)
		}
		return nil
	})
	return out, err
}

func firstKey(tx *bolt.Tx) (taskpage.Key, bool) {
	k, _ := tx.Bucket(tasksBucket).Cursor().First()
	return taskpage.Decode(k)
}

// used returns about how many bytes of the file are in use. It uses the transaction of its caller: bbolt blocks
// for ever if a reader begins a second one while a writer waits for the first, in order to map a larger file.
func used(db *file, tx *bolt.Tx) int64 {
	st := db.Stats()
	return max(0, tx.Size()-int64(st.FreePageN+st.PendingPageN)*int64(db.Info().PageSize))
}
