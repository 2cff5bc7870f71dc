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

// Forget returns how many dead letters to forget. oldest holds the oldest ones, in order,
// and may leave out later ones. count and bytes are the number and the size of all stored dead letters.
func Forget(oldest []Stored, count, bytes int, l Limits, now time.Time) int {
	n := 0
	for _, s := range oldest {
		if count <= l.Most && bytes <= l.Bytes && now.Sub(s.At) < l.Age {
			break
		}
		n, count, bytes = n+1, count-1, bytes-s.Bytes
	}
	return n
}
