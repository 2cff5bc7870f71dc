package overview

import (
	"slices"

	"github.com/google/btree"
)

// MaxStates bounds the states of jobs.
const MaxStates = 64

// Index knows the key and the state of each job, and which jobs each selection has. A change
// of a job costs the same however many jobs there are.
type Index struct {
	order      *btree.BTreeG[indexed]
	jobs       map[string]uint32 // number by key
	known      []known           // by number
	free       []uint32
	selections []*Selection
}

type indexed struct {
	key    string
	number uint32
}

type known struct {
	state   uint8
	version uint64
}

// NewIndex returns an empty index.
func NewIndex() *Index {
	return &Index{order: btree.NewG(32, func(a, b indexed) bool { return a.key < b.key }), jobs: map[string]uint32{}}
}

// Len returns the number of jobs.
func (x *Index) Len() int { return len(x.jobs) }

// Put adds a job, or notes that it has changed.
func (x *Index) Put(key string, state uint8, facts Facts) {
	number, there := x.jobs[key]
	if !there {
		number = x.number()
		x.jobs[key] = number
		x.order.ReplaceOrInsert(indexed{key, number})
	}
	was := x.known[number].state
	x.known[number].state = state
	x.known[number].version++
	for _, s := range x.selections {
		s.set(x, indexed{key, number}, was, s.filter.matches(key, state, facts))
	}
}

// number returns a free number.
func (x *Index) number() uint32 {
	if n := len(x.free); n > 0 {
		out := x.free[n-1]
		x.free = x.free[:n-1]
		return out
	}
	x.known = append(x.known, known{})
	return uint32(len(x.known) - 1)
}

// Remove removes a job.
func (x *Index) Remove(key string) {
	number, there := x.jobs[key]
	if !there {
		return
	}
	delete(x.jobs, key)
	x.order.Delete(indexed{key: key})
	for _, s := range x.selections {
		s.set(x, indexed{key, number}, x.known[number].state, false)
	}
	x.free = append(x.free, number)
}

// Version returns a number that grows with each change of a job, and false for an unknown
// job.
func (x *Index) Version(key string) (uint64, bool) {
	number, there := x.jobs[key]
	if !there {
		return 0, false
	}
	return x.known[number].version, true
}

// Selection is what a filter selects. The index keeps it up to date.
type Selection struct {
	filter Filter
	bits   []uint64
	counts [MaxStates]int32
	total  int32
	// beyond is the number of selected jobs after Filter.After.
	beyond int
	first  []string
	// at is the key of the last job that Scan has looked at. done: it has looked at all.
	at   string
	done bool
}

// Select adds a selection. The caller then calls Scan until it is complete.
func (x *Index) Select(f Filter) *Selection {
	s := &Selection{filter: f}
	x.selections = append(x.selections, s)
	return s
}

// Drop removes a selection.
func (x *Index) Drop(s *Selection) {
	x.selections = slices.DeleteFunc(x.selections, func(o *Selection) bool { return o == s })
}

// Scan looks at up to most jobs that it has not looked at yet. facts returns the facts of a
// job, and is called only if the filter reads them. Scan returns true once the selection is
// complete.
func (x *Index) Scan(s *Selection, most int, facts func(key string) Facts) (complete bool) {
	if s.done {
		return true
	}
	s.done = true
	x.order.AscendGreaterOrEqual(indexed{key: s.at}, func(i indexed) bool {
		if most == 0 {
			s.done = false
			return false
		}
		most--
		s.at = i.key + "\x00"
		var of Facts
		if s.filter.Reads() {
			of = facts(i.key)
		}
		state := x.known[i.number].state
		s.set(x, i, state, s.filter.matches(i.key, state, of))
		return true
	})
	return s.done
}

func (s *Selection) has(number uint32) bool {
	return int(number/64) < len(s.bits) && s.bits[number/64]>>(number%64)&1 == 1
}

// set notes whether the selection has a job. was is the state with which the job was counted
// last.
func (s *Selection) set(x *Index, i indexed, was uint8, has bool) {
	had := s.has(i.number)
	if had {
		s.counts[was]--
		s.total--
	}
	if has {
		s.counts[x.known[i.number].state]++
		s.total++
	}
	if had == has {
		return
	}
	for int(i.number/64) >= len(s.bits) {
		s.bits = append(s.bits, 0)
	}
	s.bits[i.number/64] ^= 1 << (i.number % 64)
	if i.key > s.filter.After {
		s.place(x, i.key, has)
	}
}

// place adds a job to the first ones, or removes it.
func (s *Selection) place(x *Index, key string, has bool) {
	at, listed := slices.BinarySearch(s.first, key)
	if has {
		s.beyond++
		if at < len(s.first) || len(s.first) < s.filter.Limit {
			s.first = slices.Insert(s.first, at, key)
			s.first = s.first[:min(len(s.first), s.filter.Limit)]
		}
		return
	}
	s.beyond--
	if !listed {
		return
	}
	s.first = slices.Delete(s.first, at, at+1)
	s.refill(x)
}

// refill adds the jobs that follow the first ones, as long as there is room.
func (s *Selection) refill(x *Index) {
	if len(s.first) == s.filter.Limit || s.beyond == len(s.first) {
		return
	}
	from := s.filter.After
	if n := len(s.first); n > 0 {
		from = s.first[n-1]
	}
	x.order.AscendGreaterOrEqual(indexed{key: from}, func(i indexed) bool {
		if i.key > from && s.has(i.number) {
			s.first = append(s.first, i.key)
		}
		return len(s.first) < s.filter.Limit && len(s.first) < s.beyond
	})
}

// First returns the keys of the jobs that the reader sees. The caller must not change the
// list.
func (s *Selection) First() []string { return s.first }

// Counts returns the number of selected jobs in each state, and of all.
func (s *Selection) Counts() (states [MaxStates]int32, total int32) { return s.counts, s.total }
