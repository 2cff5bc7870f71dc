package rank

// logged is the number of changes that a log keeps at least, once it had so many.
const logged = 4096

// Log lists the regions that changed, in their order. A user remembers End and asks later
// what changed since. The zero value is an empty log.
type Log struct {
	start int
	list  []int32
}

// Add notes that a region changed.
func (l *Log) Add(region int) {
	if len(l.list) >= 2*logged {
		n := copy(l.list, l.list[logged:])
		l.list, l.start = l.list[:n], l.start+logged
	}
	l.list = append(l.list, int32(region))
}

// End is the position behind the latest change.
func (l *Log) End() int { return l.start + len(l.list) }

// Since returns the regions that changed since a position, some maybe twice. It returns false
// if the log does not go back so far.
func (l *Log) Since(position int) (changed []int32, ok bool) {
	if position < l.start {
		return nil, false
	}
	return l.list[position-l.start:], true
}
