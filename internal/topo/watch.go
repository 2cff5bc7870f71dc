package topo

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// idleFor is how long the change log is retained after its last use, so that a watch whose
// connection broke can resume.
const idleFor = 10 * time.Minute

// WatchLog holds the change log of the matrix that all watches share, so that all watches
// see the same numbers. The change log exists while a watch runs and for idleFor after
// that. For 1,000 regions it takes 112 MB. The zero value is ready to use. A WatchLog is
// safe for concurrent use.
type WatchLog struct {
	mu  sync.Mutex
	log *topology.ChangeLog
	// generation counts the change logs of one leadership. Tokens contain the generation.
	generation uint64
	used       time.Duration
}

// WatchPosition is the position of a watch in a change log.
type WatchPosition struct{ generation, sequence uint64 }

// token returns the position as a token. epoch identifies the leadership. from is the
// region of the request.
func (p WatchPosition) token(epoch, from string) string {
	return fmt.Sprintf("%s.%x.%x.%s", epoch, p.generation, p.sequence, from)
}

// ParseWatchToken reads a token. For a token of another epoch or another request it
// returns the zero value, from which no watch can resume.
func ParseWatchToken(token, epoch, from string) WatchPosition {
	rest, ours := strings.CutPrefix(token, epoch+".")
	parts := strings.SplitN(rest, ".", 3)
	if !ours || len(parts) != 3 || parts[2] != from {
		return WatchPosition{}
	}
	generation, err := strconv.ParseUint(parts[0], 16, 64)
	sequence, err2 := strconv.ParseUint(parts[1], 16, 64)
	if err != nil || err2 != nil {
		return WatchPosition{}
	}
	return WatchPosition{generation, sequence}
}

// update updates the change log to a view. It returns the position of the log and the
// names of its regions.
func (w *WatchLog) update(v *topology.View, now time.Duration) (WatchPosition, []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.used = now
	if w.log == nil || !w.log.Update(v) {
		w.log = topology.NewChangeLog(v)
		w.generation++
	}
	return WatchPosition{w.generation, w.log.Sequence()}, w.log.Names()
}

// DropIdle drops a change log that was not used for idleFor.
func (w *WatchLog) DropIdle(now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now-w.used > idleFor {
		w.log = nil
	}
}

// changesOfRow returns the edges from region i that changed after a position. It returns
// false if the change log was replaced meanwhile.
func (w *WatchLog) changesOfRow(i int, after WatchPosition) ([]topology.Edge, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.log == nil || w.generation != after.generation {
		return nil, false
	}
	return w.log.ChangedEdges(i, after.sequence), true
}

// SendChanges sends the changes since a position, or all edges if the watch cannot resume
// from that position. The last message has the token. SendChanges returns the new
// position. It returns the zero value if the change log was replaced meanwhile.
func (w *WatchLog) SendChanges(v *topology.View, now time.Duration, after WatchPosition, epoch, from string, send func(*nusav1.MatrixResponse) error) (WatchPosition, error) {
	at, names := w.update(v, now)
	reset := after.generation != at.generation || after.sequence > at.sequence
	if reset {
		after = WatchPosition{generation: at.generation}
	}
	if after == at {
		return at, nil
	}
	same, err := sendRows(names, from, func(i int) ([]topology.Edge, bool) { return w.changesOfRow(i, after) }, reset, at.token(epoch, from), send)
	switch {
	case err != nil:
		return after, err
	case !same:
		return WatchPosition{}, nil
	}
	return at, nil
}
