package room

// segmentBytes is how finely a Trail knows its records: it names the first key of each so many
// bytes.
const segmentBytes = 1 << 20

// Trail counts records whose keys ascend with time, so that the oldest can be removed beyond a
// number of bytes. It does not know each key.
type Trail struct {
	segments []segment // oldest first
	// Records is their number, Bytes what they take.
	Records, Bytes int64
}

// segment is some records that follow each other.
type segment struct {
	first          string
	records, bytes int64
}

// Add counts a record with a later key than all before.
func (t *Trail) Add(key string, bytes int64) {
	if n := len(t.segments); n == 0 || t.segments[n-1].bytes >= segmentBytes {
		t.segments = append(t.segments, segment{first: key})
	}
	last := &t.segments[len(t.segments)-1]
	last.records, last.bytes = last.records+1, last.bytes+bytes
	t.Records, t.Bytes = t.Records+1, t.Bytes+bytes
}

// Before puts the records of an earlier trail before those of this one.
func (t *Trail) Before(earlier Trail) {
	t.segments = append(earlier.segments, t.segments...)
	t.Records, t.Bytes = t.Records+earlier.Records, t.Bytes+earlier.Bytes
}

// Excess returns the key before which records have to go so that at most so many bytes are
// left, and what that removes. It removes at most one segment; the latest one stays.
func (t *Trail) Excess(most int64) (before string, bytes int64) {
	if t.Bytes <= most || len(t.segments) < 2 {
		return "", 0
	}
	return t.segments[1].first, t.segments[0].bytes
}

// Removed counts the removal of the records before a key.
func (t *Trail) Removed(before string) {
	for len(t.segments) > 1 && t.segments[1].first <= before {
		t.Records, t.Bytes = t.Records-t.segments[0].records, t.Bytes-t.segments[0].bytes
		t.segments = t.segments[1:]
	}
}
