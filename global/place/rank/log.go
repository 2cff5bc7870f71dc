package rank

// logged is the least number of changes that a full log keeps.
const logged = 4096

// Log lists the regions that changed, in the order of the changes. A user of the Log keeps End, and
// asks later what has changed since. The zero value is an empty log.
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

// End returns the position after the latest change.
func (l *Log) End() int { return l.start + len(l.list) }

// Since returns the regions that changed since a position, some of them perhaps twice. It returns
// false if the log no longer has that position.
func (l *Log) Since(position int) (changed []int32, ok bool) {
	if position < l.start {
		return nil, false
	}
	return l.list[position-l.start:], true
}
