package delivery

import "time"

// Delays between the attempts of a Stream.
const (
	firstPause = time.Second
	maxStream  = time.Minute
)

// Pause returns the time until the next attempt, after so many failed attempts in a row. It doubles from
// 1 s to 1 min, with jitter. random is in [0, 1).
func Pause(failed int, random float64) time.Duration {
	d := firstPause
	for i := 1; i < failed && d < maxStream; i++ {
		d *= 2
	}
	return time.Duration(float64(min(d, maxStream)) * (1 - jitter + 2*jitter*random))
}

// Stream decides about deliveries in order. Every event with a number up to the cursor is delivered,
// dropped, or not selected. What waits is in the event log only.
type Stream struct {
	cursor uint64
	// failures is the number of attempts that failed since the latest success.
	failures int
	// due is when the next attempt may begin.
	due    time.Time
	counts Counts
}

// NewStream returns a stream that continues after what was saved. It uses no entries.
func NewStream(s Saved) *Stream { return &Stream{cursor: s.Cursor, counts: s.Counts} }

// Save returns what must be stored so that NewStream can continue.
func (s *Stream) Save() Saved { return Saved{Cursor: s.cursor, Counts: s.counts} }

// Cursor returns the number up to which nothing is left to do.
func (s *Stream) Cursor() uint64 { return s.cursor }

// Counts returns the totals.
func (s *Stream) Counts() Counts { return s.counts }

// Failures returns the number of attempts that failed since the latest success.
func (s *Stream) Failures() int { return s.failures }

// Due returns when the next attempt may begin. It is zero if the latest attempt succeeded.
func (s *Stream) Due() time.Time { return s.due }

// Read notes the events that follow the cursor, and the first of them that were delivered, out of those
// that are selected. The cursor moves to the last event before the first one that is left.
func (s *Stream) Read(numbers []uint64, selected []bool, delivered int) {
	s.counts.Delivered += uint64(delivered)
	for i, n := range numbers {
		if selected[i] {
			if delivered == 0 {
				return
			}
			delivered--
		}
		s.cursor = max(s.cursor, n)
	}
}

// Succeeded notes that an attempt succeeded.
func (s *Stream) Succeeded() { s.failures, s.due = 0, time.Time{} }

// Failed notes that an attempt failed. progress: it delivered some events before.
func (s *Stream) Failed(progress bool, now time.Time, random float64) {
	if progress {
		s.failures = 0
	}
	s.failures++
	s.due = now.Add(Pause(s.failures, random))
}

// Missed notes that retention removed events that follow the cursor before they were read. next is the
// number of the first event that is left.
func (s *Stream) Missed(n, next uint64) {
	s.counts.Dropped += n
	s.cursor = max(s.cursor, next-1)
}

// Hurry makes the next attempt due now.
func (s *Stream) Hurry() { s.due = time.Time{} }

// Skip continues after a number.
func (s *Stream) Skip(cursor uint64) { s.cursor = max(s.cursor, cursor) }
