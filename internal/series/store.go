package series

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// maxClosed bounds the complete minutes that wait in memory for a slow disk.
	maxClosed = 3
	// maxSetAside bounds the damaged files in the life of a process. After that many the
	// store no longer uses the disk.
	maxSetAside = 3
	// steadyFor is the number of calls of Append without a jump of the clock that must
	// pass before old data, or data ahead of the clock, is removed. One wrong reading of
	// the clock must not cost a month of history.
	steadyFor    = 720
	jumpBack     = time.Minute
	jumpForward  = time.Hour
	warnAgain    = time.Hour
	maintainEach = 12 * 60 // slots between removals of silent series: one hour
)

// Store is the history of one server. It is safe for concurrent use. A nil *Store
// stores nothing: Append has no effect, and Query knows no series.
type Store struct {
	path   string
	limits Limits
	kinds  []Kind
	log    *slog.Logger
	noSync bool // tests

	mu       sync.Mutex
	closed   bool
	reg      *registry
	last     time.Time // the time of the last Append
	slot     int64     // the slot of the last Append
	steady   int       // calls of Append since the clock jumped
	seq      uint64
	open     *minute
	waiting  []*minute // complete and not written yet, oldest first
	writing  int       // how many of the waiting minutes are being written
	spare    *minute
	stats    Stats
	lastWarn time.Time
	tidied   int64 // slot of the last removal of silent series

	fileMu sync.RWMutex
	file   *file // nil after too many damaged files

	wake chan struct{}
	done chan struct{}
}

// Open opens the store in the file at path, and creates the file and its folder if they do
// not exist. A file that is damaged or has another format is renamed to path + ".damaged".
// Open then logs a warning and begins a new file. So errors are only about the path (no
// permission, no space, open in another process) and about the kinds. A server should log
// the error and continue with a nil store.
func Open(path string, kinds []Kind, limits Limits, log *slog.Logger) (*Store, error) {
	s, err := open(path, kinds, limits, log, false)
	if err != nil {
		return nil, err
	}
	s.wake, s.done = make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(s.done)
		for range s.wake {
			s.cycle()
		}
	}()
	return s, nil
}

func open(path string, kinds []Kind, limits Limits, log *slog.Logger, noSync bool) (*Store, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if err := checkKinds(kinds); err != nil {
		return nil, fmt.Errorf("series in %s: %w", path, err)
	}
	s := &Store{path: path, limits: limits.withDefaults(), kinds: kinds, log: log, noSync: noSync, steady: steadyFor}
	if err := s.openFile(); err != nil {
		return nil, fmt.Errorf("series in %s: %w", path, err)
	}
	return s, nil
}

// openFile opens the file and registers its series.
func (s *Store) openFile() error {
	f, r, newest, err := openChecked(s.path, s.kinds, s.limits, s.noSync, time.Now(), s.warnDamaged)
	if err != nil {
		return err
	}
	s.file, s.reg = f, r
	if newest > 0 {
		s.slot, s.last = newest, timeOf(newest)
	}
	if over := r.count - s.limits.Series; over > 0 {
		for _, q := range r.silentSince(1 << 62)[:over] {
			r.remove(q.kind, q.key)
		}
	}
	return nil
}

func (s *Store) warnDamaged(err error) {
	s.stats.SetAside++
	var f fault
	if errors.As(err, &f) {
		s.log.Warn("the stack of the fault", "stack", string(f.stack))
	}
	s.log.Warn("the file of the time series is damaged: it is set aside, and history starts from the beginning",
		"path", s.path, "aside", s.path+".damaged", "error", err)
}

// Append stores the values that were measured at now. Call it every 5 s, once for all
// series. A second call in the same 5 s overwrites the values of the same series. Append
// does no I/O and does not retain samples.
//
// When the clock goes back, new values replace the old values of the same time. When the
// clock jumps forward, a gap remains.
//
// The error is ErrTooManySeries, ErrSample or both if some samples were not stored, or
// ErrClosed.
func (s *Store) Append(now time.Time, samples []Sample) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	slot := nextSlot(now, s.last, s.slot)
	if slot < 0 {
		return fmt.Errorf("%w: the clock says %s", ErrSample, now)
	}
	if gap := now.Sub(s.last); !s.last.IsZero() && (gap < -jumpBack || gap > jumpForward) {
		s.steady = 0
	} else {
		s.steady = min(s.steady+1, steadyFor)
	}
	s.last, s.slot = now, slot
	if start := floorTo(slot, levels[0].span()); s.open == nil || s.open.start != start {
		s.rotate(start)
	}
	s.tidy()

	refused := refusal{limit: s.limits.Series}
	var silent []silentSeries // found once per call
	searched := false
	room := func() bool {
		if s.reg.count < s.limits.Series {
			return true
		}
		if !searched {
			silent, searched = s.reg.silentSince(slot-silentAfter), true
		}
		if len(silent) == 0 {
			return false
		}
		s.reg.remove(silent[0].kind, silent[0].key)
		silent = silent[1:]
		return true
	}
	for i := range samples {
		s.add(&samples[i], slot, room, &refused)
	}
	s.stats.Refused += uint64(refused.series)
	return refused.err()
}

// add stores one sample in the open minute.
func (s *Store) add(x *Sample, slot int64, room func() bool, refused *refusal) {
	k := s.reg.kinds[x.Kind]
	if k == nil || len(x.Values) != len(k.columns) || x.Key == "" || len(x.Key) > maxKey {
		refused.samples++
		refused.example = fmt.Sprintf("%s %.32q with %d values", x.Kind, x.Key, len(x.Values))
		return
	}
	e := k.series[x.Key]
	if e == nil {
		if !slices.ContainsFunc(x.Values, func(v float64) bool { return toOrdinal(v) != none }) {
			return
		}
		if !room() {
			refused.series++
			return
		}
		e = s.reg.add(k, strings.Clone(x.Key))
	}
	at := int(slot - s.open.start)
	var any bool
	for i, v := range x.Values {
		o := toOrdinal(v)
		if o == none && !any {
			continue
		}
		if e.in != s.open.seq {
			e.in, e.row = s.open.seq, s.open.row(e.id, len(k.stored))
		}
		if !any { // the first value replaces all values of an earlier call in this slot
			any = true
			for f := range len(k.stored) {
				s.open.set(e.row, f, at, none)
			}
		}
		s.open.set(e.row, k.columns[i], at, o)
	}
	if any {
		e.seen = slot
	}
}

// rotate passes the open minute to the writer and opens another one.
func (s *Store) rotate(start int64) {
	if s.open != nil && len(s.open.ids) > 0 {
		s.waiting = append(s.waiting, s.open)
		s.open = nil
		if len(s.waiting) > max(maxClosed, s.writing+1) {
			s.waiting = slices.Delete(s.waiting, s.writing, s.writing+1)
			s.stats.LostMinutes++
		}
	}
	if s.open == nil {
		s.open, s.spare = s.spare, nil
		if s.open == nil {
			s.open = &minute{}
		}
	}
	s.seq++
	s.open.reset(start, s.seq)
	s.wakeWriter()
}

func (s *Store) wakeWriter() {
	select {
	case s.wake <- struct{}{}:
	default: // the writer runs, or a test calls cycle itself
	}
}

// tidy removes once an hour the series that have no data any more.
func (s *Store) tidy() {
	if s.steady < steadyFor || s.slot-s.tidied < maintainEach && s.tidied <= s.slot {
		return
	}
	s.tidied = s.slot
	for _, q := range s.reg.silentSince(levels[coarsest].covered(s.slot)) {
		s.reg.remove(q.kind, q.key)
	}
}

// Keys returns the keys of a kind that begin with prefix, sorted.
func (s *Store) Keys(kind, prefix string) []string {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	if k := s.reg.kinds[kind]; k != nil {
		for key := range k.series {
			if strings.HasPrefix(key, prefix) {
				out = append(out, key)
			}
		}
	}
	slices.Sort(out)
	return out
}

// Forget removes a series. Later samples begin a new series. A crash in the next minute
// may bring the removed series back.
func (s *Store) Forget(kind, key string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.reg.kinds[kind]; k != nil {
		s.reg.remove(k, key)
	}
}

// Stats returns the statistics of the store.
func (s *Store) Stats() Stats {
	if s == nil {
		return Stats{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.stats
	out.Series = s.reg.count
	return out
}

// Close writes the minutes in memory and closes the file. It returns the error of the
// last write, if it failed.
func (s *Store) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	if s.open != nil {
		s.rotate(s.open.start)
	}
	s.mu.Unlock()
	if s.wake != nil {
		close(s.wake)
		<-s.done
	}
	s.cycle() // writes the last minute if the writer was busy with another minute
	s.fileMu.Lock()
	defer s.fileMu.Unlock()
	if s.file == nil {
		return s.Stats().Failing
	}
	err := guard(s.file.db.Close)
	s.file = nil
	return errors.Join(s.Stats().Failing, err)
}
