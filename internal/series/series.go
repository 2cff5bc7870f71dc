// Package series keeps how measured values went over time, in one bounded file
// per server: every 5 seconds for an hour, each minute for a day, each ten
// minutes for 31 days.
//
// A series is one thing measured — a node, an edge, a pool — with the fields of
// its kind. Append takes what was measured now and returns at once: it touches
// memory only. Once a minute a goroutine of the store writes a minute of all
// series in one transaction, makes one or two coarser segments of finer ones,
// and removes what is too old. A crash loses the last minute or so; a damaged
// file is set aside and a new one begun. Nothing here ever stops a server.
//
// What answers hold does not depend on what has been written or made coarser
// meanwhile: a query folds what is still fine in the same way.
//
// Layers, from the pure to the file: quant, bits, block, segment (encoding),
// grid (levels, slots, choice of level), tail (the minutes in memory), disk
// (transactions over bbolt), store. Trend and Sparkline work on answers and
// need no store.
package series

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Kind names the fields of all series of a kind, in the order of
// Sample.Values. Fields may be added, removed and reordered between versions of
// a program: the file goes by their names. At most 32 fields over the life of a
// file, 64 bytes a name.
type Kind struct {
	Name   string
	Fields []string
}

// Sample is one measurement. Key names the thing among its kind, at most 256
// bytes. Values has the length of the kind's fields; NaN (or an infinity) is no
// value. Values are kept to 0.012 %, integers up to 8,192 exactly.
type Sample struct {
	Kind, Key string
	Values    []float64
}

// Limits bound a store. Zero values take the defaults.
type Limits struct {
	// Series is how many series are kept at a time; 20,000 by default. A new one
	// beyond takes the place of the one that was silent longest, if that is a
	// day at least, and is refused otherwise. Memory: about 0.8 KiB for one of 6
	// fields, 1.7 KiB where the disk stands still.
	Series int
	// Bytes bounds the file; 3 GiB by default, 4 MiB at least. From four fifths
	// on the oldest of the coarsest data goes; the file never exceeds the bound.
	// 31 days of a noisy series of 6 fields take 183 KB, of a quiet one far less:
	// 11,000 noisy ones take 2 GB. A file over a lowered bound is copied, less
	// its oldest, when it is opened.
	// A damaged file is kept beside it for a week: twice the bound in all then.
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
	// MaxPoints bounds the windows of one answer; defaultPoints is how many a
	// query without a step gets at most.
	MaxPoints     = 2000
	defaultPoints = 300
)

var (
	// ErrTooManySeries: some samples were of new series beyond Limits.Series.
	// The others were taken.
	ErrTooManySeries = errors.New("too many series")
	// ErrSample: some samples were of an unknown kind, had another number of
	// values than their kind, or a key that is empty or too long. The others
	// were taken.
	ErrSample = errors.New("bad sample")
	// ErrUnknown: no such series is kept.
	ErrUnknown = errors.New("unknown series")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("series store is closed")
)

// refusal is what Append did not take of a call.
type refusal struct {
	series, samples int
	limit           int
	example         string
}

func (r refusal) err() error {
	var errs []error
	if r.series > 0 {
		errs = append(errs, fmt.Errorf("%w: %d new ones refused, %d are kept at most; raise the limit or forget some", ErrTooManySeries, r.series, r.limit))
	}
	if r.samples > 0 {
		errs = append(errs, fmt.Errorf("%w: %d refused, such as %s", ErrSample, r.samples, r.example))
	}
	return errors.Join(errs...)
}

// Point is one window of one field: how many values were measured in it, their
// mean, least and greatest. Without any, Count is 0 and the others are NaN.
type Point struct {
	Count          int
	Mean, Min, Max float64
}

// Series is the answer to a query.
type Series struct {
	Kind, Key string
	Fields    []string
	// Start is the beginning of the first window, Step the length of each.
	// Windows lie on multiples of Step since 1970 (UTC).
	Start time.Time
	Step  time.Duration
	// Resolution is that of the data that the windows were made of.
	Resolution time.Duration
	// Points has one row per field, all of one length, at most MaxPoints.
	Points [][]Point
}

// Field returns the points of a field, nil where there is no such field.
func (s Series) Field(name string) []Point {
	for i, f := range s.Fields {
		if f == name {
			return s.Points[i]
		}
	}
	return nil
}

// Means returns the means of points, NaN for gaps: what Sparkline draws.
func Means(points []Point) []float64 {
	out := make([]float64, len(points))
	for i, p := range points {
		out[i] = math.NaN()
		if p.Count > 0 {
			out[i] = p.Mean
		}
	}
	return out
}

// Stats describes a store.
type Stats struct {
	Series      int    // kept now
	Refused     uint64 // samples of series beyond the limit
	LostMinutes uint64 // minutes that could not be written, or were damaged
	Evicted     uint64 // segments that went before their time, for want of space
	SetAside    uint64 // damaged files, since Open
	FileBytes   int64  // size of the file, as of the last write
	UsedBytes   int64  // of it in use
	LastWrite   time.Time
	Failing     error // why the last write failed, nil after one that did not
}
