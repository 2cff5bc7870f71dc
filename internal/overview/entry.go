package overview

import (
	"slices"
	"strings"
	"time"
)

// TextPause is the least time between two entries of an object that differ only in the
// numbers of a text.
const TextPause = 10 * time.Second

// Entry is what readers see of one object, for example of a region. An Entry is never
// changed.
type Entry struct {
	// Key identifies the object within its section.
	Key string
	// Exact has the values whose every change is noticeable, in an encoded form.
	Exact string
	// Text is a text whose words are in Exact. A change of its numbers alone is noticeable
	// only after TextPause.
	Text string
	// Loads are the values of which only large changes are noticeable. Each entry of an
	// object has the same loads in the same order.
	Loads []Load
	// Size is the approximate size of the entry in a message, in bytes.
	Size int
	// Value is the entry in the form in which it is sent. This package does not read it.
	Value any

	// made is when the entry was made, for TextPause.
	made time.Duration
}

// Load is a value that changes all the time, for example the use of memory. A change is
// noticeable when it is greater than Step, and when the value becomes 0 or is 0 no longer.
type Load struct{ Value, Step float64 }

// KeepEntry returns the entry that readers see: the earlier one, unless the present one
// differs noticeably. Both may be nil.
func KeepEntry(was, is *Entry, now time.Duration) *Entry {
	if was == nil || is == nil {
		return made(is, now)
	}
	same := was.Exact == is.Exact && len(was.Loads) == len(is.Loads) && (was.Text == is.Text || now-was.made < TextPause)
	for i := 0; same && i < len(is.Loads); i++ {
		same = !is.Loads[i].differs(was.Loads[i])
	}
	if same {
		return was
	}
	return made(is, now)
}

func made(e *Entry, now time.Duration) *Entry {
	if e != nil {
		e.made = now
	}
	return e
}

func (l Load) differs(was Load) bool {
	d := l.Value - was.Value
	return d > l.Step || -d > l.Step || (l.Value == 0) != (was.Value == 0)
}

// Section is a list of entries, sorted by key.
type Section []*Entry

// Sort sorts the entries by key.
func (s Section) Sort() {
	slices.SortFunc(s, func(a, b *Entry) int { return strings.Compare(a.Key, b.Key) })
}

// Keep returns the section that readers see: the entries of the earlier section, except
// those that are new, gone or noticeably different. Nobody may change is afterwards.
func (is Section) Keep(was Section, now time.Duration) Section {
	out, i, same := is, 0, len(is) == len(was)
	for n, e := range is {
		for i < len(was) && was[i].Key < e.Key {
			i++
		}
		var old *Entry
		if i < len(was) && was[i].Key == e.Key {
			old = was[i]
		}
		out[n] = KeepEntry(old, e, now)
		same = same && out[n] == old
	}
	if same {
		return was
	}
	return out
}

// changes returns the entries of a section that differ from an earlier section, and the
// entries that are gone.
func (is Section) changes(was Section) (changed, gone []*Entry) {
	i := 0
	for _, e := range is {
		for ; i < len(was) && was[i].Key < e.Key; i++ {
			gone = append(gone, was[i])
		}
		if i < len(was) && was[i].Key == e.Key {
			i++
			if was[i-1] == e {
				continue
			}
		}
		changed = append(changed, e)
	}
	return changed, append(gone, was[i:]...)
}
