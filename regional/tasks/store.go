package tasks

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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

// Limits bound a history. The records that ended first are removed first, a segment at once. Records of
// allocations that have not ended are removed only by Count and Bytes, when no other is left.
type Limits struct {
	Count int64
	Age   time.Duration // counts from the end of an allocation
	Bytes int64         // of the files
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

// Store is the history of a server: a folder with segments, the oldest first, and a journal. The journal has the
// records of all allocations that run, and of those that ended last. It is safe for concurrent use.
type Store struct {
	folder
	limits Limits
	// writing is held during a write. Only its holder changes what mu protects.
	writing sync.Mutex
	mu      sync.RWMutex
	why     string   // why nothing is open
	journal *journal // nil while nothing is open
	recent  *recent
	// sequence is in the name of the journal: see journalName.
	sequence uint64
	segments []*segment
	at       *nusav1.CopyTasksResponse // event, gaps and cluster
	// carried are the bytes with which the journal began, at the time rotated.
	carried int64
	rotated time.Time
	// broken: a write failed, or a reader found damage in the journal. The next write ends with an error.
	broken atomic.Bool
	enc    encoder
	// moved tells about each write.
	moved notify.Signal
}

// NewStore returns a store without an open file. An empty path stands for a server without a disk.
func NewStore(path string, limits Limits, log *slog.Logger) *Store {
	why := "the history of tasks is being opened"
	if path == "" {
		why = "this server has no disk, and so no history of tasks"
	}
	return &Store{folder: folder{path: path, log: log}, limits: limits.Filled(), why: why, at: &nusav1.CopyTasksResponse{}}
}

// errClosed is the error of a store without an open file.
var errClosed = errors.New("no file is open")

// open opens the files. It notes a gap for each damaged segment, and then sets it aside: after a crash between
// the two, it does both again.
func (s *Store) open() error {
	var o opened
	err := s.openFiles(&o)
	if err != nil {
		o.close()
	}
	s.use(&o, err)
	if err != nil || len(o.damaged) == 0 {
		return err
	}
	err = s.update(func(b *batch) error {
		for _, d := range o.damaged {
			addGap(b.at, d.gap)
		}
		return nil
	})
	for _, d := range o.damaged {
		if err == nil {
			err = s.setAside(d.path, d.why)
		}
	}
	return err
}

// use goes on with opened files, or says why there are none.
func (s *Store) use(o *opened, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.why = err.Error()
		return
	}
	s.broken.Store(false)
	s.journal, s.recent, s.sequence, s.segments, s.at, s.why = o.journal, o.recent, o.sequence, o.segments, o.at, ""
	s.carried, s.rotated = 0, time.Time{}
}

// close closes the files.
func (s *Store) close(why string) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = why
	if s.journal == nil {
		return
	}
	err := s.journal.f.Close()
	for _, g := range s.segments {
		err = errors.Join(err, g.f.Close())
	}
	if err != nil {
		s.log.Warn("close the history of tasks", "error", err)
	}
	s.journal, s.recent, s.segments = nil, nil, nil
}

// view reads the history.
func (s *Store) view(f func() error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(); err != nil {
		return err
	}
	return f()
}

func (s *Store) usable() error {
	if s.journal == nil {
		return fmt.Errorf("%w: %s", errClosed, s.why)
	}
	if s.broken.Load() {
		return fmt.Errorf("%w: the journal must be opened again", errDamaged)
	}
	return nil
}

// blame notes where damage was found: in a segment, or in the journal if g is nil.
func (s *Store) blame(g *segment, err error) error {
	switch {
	case !errors.Is(err, errDamaged):
	case g != nil:
		g.damaged.Store(true)
		return fmt.Errorf("%s: %w", filepath.Base(g.path), err)
	default:
		s.broken.Store(true)
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
	return s.usable() == nil
}

// Retention says what the history contains.
func (s *Store) Retention(region string) (*nusav1.TaskRetention, error) {
	out := &nusav1.TaskRetention{
		Region: region, Age: durationpb.New(s.limits.Age), Most: s.limits.Count, MostBytes: s.limits.Bytes,
	}
	err := s.view(func() error {
		out.Count, out.Bytes, out.Gaps = s.count(), s.bytes(), slices.Clone(s.at.GetGaps())
		var oldest *taskpage.Key
		see := func(k taskpage.Key) {
			if oldest == nil || k.Compare(*oldest) < 0 {
				oldest = &k
			}
		}
		for _, g := range s.segments {
			see(g.Least)
		}
		if len(s.recent.order) > 0 {
			see(s.recent.order[0].key)
		}
		if oldest != nil {
			out.Oldest = timestamp(oldest.Placed)
		}
		return nil
	})
	return out, err
}

// count returns the number of records. The caller holds mu.
func (s *Store) count() int64 {
	n := len(s.recent.order)
	if len(s.segments) > 0 {
		n -= s.recent.again
	}
	for i, g := range s.segments {
		n += int(g.Records)
		if i > 0 { // the older copies may be removed, as those of the first segment are
			n -= int(g.Again)
		}
	}
	return int64(max(n, 0))
}

// bytes returns the size of the files. The caller holds mu.
func (s *Store) bytes() int64 {
	n := s.journal.size
	for _, g := range s.segments {
		n += g.bytes
	}
	return n
}
