package room

// segmentBytes is the size of a segment. A Trail knows only the first key of each segment.
const segmentBytes = 1 << 20

// Trail counts records whose keys ascend with time, so that the oldest records beyond a number of
// bytes can be removed. A Trail does not hold each key.
type Trail struct {
	segments []segment // oldest first
	// Records is the number of records. Bytes is what they take.
	Records, Bytes int64
}

// segment is a run of consecutive records.
type segment struct {
	first          string
	records, bytes int64
}

// Add counts a record. Its key must be later than all keys before.
func (t *Trail) Add(key string, bytes int64) {
	if n := len(t.segments); n == 0 || t.segments[n-1].bytes >= segmentBytes {
		t.segments = append(t.segments, segment{first: key})
	}
	last := &t.segments[len(t.segments)-1]
	last.records, last.bytes = last.records+1, last.bytes+bytes
	t.Records, t.Bytes = t.Records+1, t.Bytes+bytes
}

// Before puts the records of an earlier trail before the records of this one.
func (t *Trail) Before(earlier Trail) {
	t.segments = append(earlier.segments, t.segments...)
	t.Records, t.Bytes = t.Records+earlier.Records, t.Bytes+earlier.Bytes
}

// Excess returns the key before which records must be removed so that at most this many bytes are
// left, and the bytes of those records. One call covers at most one segment. The latest segment
// stays.
func (t *Trail) Excess(most int64) (before string, bytes int64) {
	if t.Bytes <= most || len(t.segments) < 2 {
		return "", 0
	}
	return t.segments[1].first, t.segments[0].bytes
}

// Removed notes that the records before a key were removed.
func (t *Trail) Removed(before string) {
	for len(t.segments) > 1 && t.segments[1].first <= before {
		t.Records, t.Bytes = t.Records-t.segments[0].records, t.Bytes-t.segments[0].bytes
		t.segments = t.segments[1:]
	}
}
