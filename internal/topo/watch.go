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

// idleFor is how long the board is kept that nobody looks at, so that who
// watched can go on.
const idleFor = 10 * time.Minute

// WatchLog are the matrix as it was told to those who watch it: one for all, so
// that they see the same numbers. The board exists while somebody watches, and a
// while longer: of 1,000 regions it is 112 MB. Safe for concurrent use; the zero
// value is ready.
type WatchLog struct {
	mu    sync.Mutex
	board *topology.ChangeLog
	// generation numbers the boards of a reign, for tokens.
	generation uint64
	used       time.Duration
}

// WatchPosition is how far a watch has got.
type WatchPosition struct{ generation, sequence uint64 }

// token is the place in words; from is part of the question.
func (w WatchPosition) token(epoch, from string) string {
	return fmt.Sprintf("%s.%x.%x.%s", epoch, w.generation, w.sequence, from)
}

// ParseWatchToken reads a token; the zero value, from which nobody can go on, if it is
// of another reign or question.
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

// update brings the board up to date and answers where it stands, and its regions.
func (b *WatchLog) update(v *topology.View, now time.Duration) (WatchPosition, []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = now
	if b.board == nil || !b.board.Update(v) {
		b.board = topology.NewChangeLog(v)
		b.generation++
	}
	return WatchPosition{b.generation, b.board.Sequence()}, b.board.Names()
}

// DropIdle drops a board that nobody has looked at for long.
func (b *WatchLog) DropIdle(now time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now-b.used > idleFor {
		b.board = nil
	}
}

// changesOfRow answers the edges from region i that were posted after a place, false if
// the board is another one by now.
func (b *WatchLog) changesOfRow(i int, after WatchPosition) ([]topology.Edge, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.board == nil || b.generation != after.generation {
		return nil, false
	}
	return b.board.ChangedEdges(i, after.sequence), true
}

// SendChanges sends what was posted since a place, everything if one cannot go on from
// there, in messages of which the last one has the token. It answers the new
// place, or the old one when another board came in between.
func (b *WatchLog) SendChanges(v *topology.View, now time.Duration, after WatchPosition, epoch, from string, send func(*nusav1.MatrixResponse) error) (WatchPosition, error) {
	at, names := b.update(v, now)
	reset := after.generation != at.generation || after.sequence > at.sequence
	if reset {
		after = WatchPosition{generation: at.generation}
	}
	if after == at {
		return at, nil
	}
	same, err := sendRows(names, from, func(i int) ([]topology.Edge, bool) { return b.changesOfRow(i, after) }, reset, at.token(epoch, from), send)
	switch {
	case err != nil:
		return after, err
	case !same:
		return WatchPosition{}, nil
	}
	return at, nil
}
