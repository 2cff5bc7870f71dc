package tasks

import (
	"context"
	"sort"
	"sync"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// maxTail bounds the events that wait for the disk: about 64 MB of memory. The log itself has fewer, so a
// burst of more events than that would leave a gap if the recorder only wrote what the log has.
const maxTail = 1 << 18

// numbered is an event with its number.
type numbered struct {
	number uint64
	event  *state.Event
}

// tail has the events that wait for the disk, as far as they were read from the log in time.
type tail struct {
	mu   sync.Mutex
	list []numbered // by number
	at   uint64     // number of the latest event that was read
}

// follow reads the events of a log after a number until ctx ends.
func (t *tail) follow(ctx context.Context, log Log, after uint64) {
	t.mu.Lock()
	t.list, t.at = nil, after
	t.mu.Unlock()
	for ctx.Err() == nil {
		view, changed := log.Watch()
		t.read(view)
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// read adds the events of a view that are new. It leaves them out while the tail is full.
func (t *tail) read(view *state.View) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for number, e := range view.Events().After(t.at) {
		if len(t.list) >= maxTail {
			return
		}
		t.list, t.at = append(t.list, numbered{number, e}), number
	}
}

// take returns the events that follow a number without a gap, at most most. It forgets earlier ones. It
// returns none if the tail does not have the next event.
func (t *tail) take(after uint64, most int) []numbered {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = t.list[sort.Search(len(t.list), func(i int) bool { return t.list[i].number > after }):]
	n := 0
	for n < min(most, len(t.list)) && t.list[n].number == after+uint64(n)+1 {
		n++
	}
	if len(t.list) == 0 {
		t.list = nil // the memory of a burst
	}
	return t.list[:n:n]
}
