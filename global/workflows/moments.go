package workflows

import "time"

// moment is a time at which a step must be looked at.
type moment struct {
	at   time.Time
	step int
}

// moments implements heap.Interface.
type moments []moment

func (m moments) Len() int           { return len(m) }
func (m moments) Less(i, j int) bool { return m[i].at.Before(m[j].at) }
func (m moments) Swap(i, j int)      { m[i], m[j] = m[j], m[i] }

// Push appends a moment.
func (m *moments) Push(x any) {
	v, _ := x.(moment)
	*m = append(*m, v)
}

// Pop removes the last moment.
func (m *moments) Pop() any {
	last := (*m)[len(*m)-1]
	*m = (*m)[:len(*m)-1]
	return last
}
