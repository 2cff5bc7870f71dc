package plan

import "time"

// Stored is a stored dead letter.
type Stored struct {
	At    time.Time
	Bytes int
}

// Limits say which dead letters are forgotten.
type Limits struct {
	Age   time.Duration
	Most  int
	Bytes int
}

// Forget returns how many dead letters to forget. all begins with the oldest one. count and bytes are those of all
// stored ones, of which all may be only the beginning.
func Forget(all []Stored, count, bytes int, l Limits, now time.Time) int {
	n := 0
	for _, s := range all {
		if count <= l.Most && bytes <= l.Bytes && now.Sub(s.At) < l.Age {
			break
		}
		n, count, bytes = n+1, count-1, bytes-s.Bytes
	}
	return n
}
