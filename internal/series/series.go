package series

import (
	"errors"
	"fmt"
	"time"
)

// Kind names the fields of all series of a kind, in the order of Sample.Values. A new
// version of a program may add, remove and reorder fields, because the file identifies
// fields by name. A kind has at most 32 fields over the life of a file, with names of at
// most 64 bytes.
type Kind struct {
	Name   string
	Fields []string
}

// Sample is one measurement. Key identifies the measured object within its kind and has at
// most 256 bytes. Values has one value for each field of the kind. NaN or an infinity
// means no value. Values are stored with an error of at most 0.012 %, integers up to 8,192
// exactly.
type Sample struct {
	Kind, Key string
	Values    []float64
}

// Limits bound a store. Zero values take the defaults.
type Limits struct {
	// Series bounds the number of series; 20,000 by default. A new series beyond the
	// bound replaces the series that has been silent for the longest time, if that is at
	// least a day. Otherwise it is refused. A series of 6 fields takes about 0.8 KiB of
	// memory, 1.7 KiB while the disk does not respond.
	Series int
	// Bytes bounds the file; 3 GiB by default, at least 4 MiB. The file never exceeds the
	// bound: above four fifths of it, the oldest of the coarsest data is removed. 31 days
	// of a noisy series of 6 fields take 183 KB, and 31 days of a quiet series far less.
	// 11,000 noisy series take 2 GB. When a file exceeds a lowered bound, Open copies it
	// without its oldest data. A damaged file stays beside the new one for a week, so both
	// together can take twice the bound.
	Bytes int64
}

func (l Limits) withDefaults() Limits {
	if l.Series <= 0 {
		l.Series = 20_000
	}
	if l.Bytes <= 0 {
		l.Bytes = 3 << 30
	}
	l.Bytes = max(l.Bytes, 4<<20)
	return l
}

const (
	maxKey       = 256
	maxFieldName = 64
	// MaxPoints bounds the windows of one result. defaultPoints bounds the windows of a
	// query without a step.
	MaxPoints     = 2000
	defaultPoints = 300
)

var (
	// ErrTooManySeries means that some samples were of new series beyond Limits.Series.
	// The other samples were stored.
	ErrTooManySeries = errors.New("too many series")
	// ErrSample means that some samples were of an unknown kind, had another number of
	// values than their kind, or had an empty or too long key. The other samples were
	// stored.
	ErrSample = errors.New("bad sample")
	// ErrUnknown means that the store has no such series.
	ErrUnknown = errors.New("unknown series")
	// ErrClosed means that the store was closed.
	ErrClosed = errors.New("series store is closed")
)

// refusal counts the samples of one call of Append that were not stored.
type refusal struct {
	series, samples int
	limit           int
	example         string
}

func (r refusal) err() error {
	var errs []error
	if r.series > 0 {
		errs = append(errs, fmt.Errorf("%w: %d new ones are refused, because the limit is %d; raise the limit or forget some", ErrTooManySeries, r.series, r.limit))
	}
	if r.samples > 0 {
		errs = append(errs, fmt.Errorf("%w: %d refused, such as %s", ErrSample, r.samples, r.example))
	}
	return errors.Join(errs...)
}

// Point is one window of one field: the number of measured values, and their mean, minimum
// and maximum. Without values Count is 0, and the others are NaN.
type Point struct {
	Count          int
	Mean, Min, Max float64
}

// Series is the result of a query.
type Series struct {
	Kind, Key string
	Fields    []string
	// Start is the beginning of the first window, Step the length of each window.
	// Windows begin at multiples of Step since 1970 (UTC).
	Start time.Time
	Step  time.Duration
	// Resolution is the resolution of the stored data from which the windows were made.
	Resolution time.Duration
	// Points has one row per field, all of the same length, at most MaxPoints.
	Points [][]Point
}

// Field returns the points of a field; nil for an unknown field.
func (s Series) Field(name string) []Point {
	for i, f := range s.Fields {
		if f == name {
			return s.Points[i]
		}
	}
	return nil
}

// Stats describes a store.
type Stats struct {
	Series      int    // number of series
	Refused     uint64 // samples that were refused because they were of new series beyond the limit
	LostMinutes uint64 // minutes that could not be written or were damaged
	Evicted     uint64 // segments that were removed early for lack of space
	SetAside    uint64 // damaged files that were set aside since Open
	FileBytes   int64  // size of the file at the last write
	UsedBytes   int64  // part of FileBytes in use
	LastWrite   time.Time
	Failing     error // the error of the last write; nil if it succeeded
}
