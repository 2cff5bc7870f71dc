package room

import (
	"maps"
	"slices"
)

// Shares counts records of several owners, so that the oldest records can be removed at a limit: those
// of the owner with the most bytes first. So no owner pushes out the records of others.
type Shares struct {
	owners map[string]*share
	// Bytes is what all records take. Records is their number.
	Bytes, Records int64
}

// share has the records of one owner, oldest first.
type share struct {
	records []shared
	bytes   int64
}

// shared is a record of a share.
type shared struct {
	number int64
	bytes  int32
}

// Add counts a record of an owner. Its number must be greater than those of the owner's other records.
func (s *Shares) Add(owner string, number, bytes int64) {
	if s.owners == nil {
		s.owners = map[string]*share{}
	}
	o := s.owners[owner]
	if o == nil {
		o = &share{}
		s.owners[owner] = o
	}
	o.records = append(o.records, shared{number, int32(bytes)})
	o.bytes, s.Bytes, s.Records = o.bytes+bytes, s.Bytes+bytes, s.Records+1
}

// Last returns the greatest number of all records; 0: there is none.
func (s *Shares) Last() (last int64) {
	for _, o := range s.owners {
		if n := len(o.records); n > 0 {
			last = max(last, o.records[n-1].number)
		}
	}
	return last
}

// Excess removes records until at most this many bytes are left, and returns the numbers of the
// removed records. It removes at most limit records.
func (s *Shares) Excess(most int64, limit int) (removed []int64) {
	for s.Bytes > most && len(removed) < limit {
		names := slices.Sorted(maps.Keys(s.owners))
		greatest := slices.MaxFunc(names, func(a, b string) int { return int(s.owners[a].bytes - s.owners[b].bytes) })
		removed = append(removed, s.drop(greatest))
	}
	return removed
}

// Before removes the records with lower numbers, and reports whether there were any.
func (s *Shares) Before(number int64) (any bool) {
	for _, name := range slices.Sorted(maps.Keys(s.owners)) {
		for o := s.owners[name]; o != nil && o.records[0].number < number; o = s.owners[name] {
			s.drop(name)
			any = true
		}
	}
	return any
}

// drop removes the oldest record of an owner, and returns its number.
func (s *Shares) drop(owner string) int64 {
	o := s.owners[owner]
	first := o.records[0]
	o.records = o.records[1:]
	o.bytes, s.Bytes, s.Records = o.bytes-int64(first.bytes), s.Bytes-int64(first.bytes), s.Records-1
	if len(o.records) == 0 {
		delete(s.owners, owner)
	}
	return first.number
}
