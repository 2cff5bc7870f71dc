package global

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// boardKept is how long the board is kept that nobody looks at, so that who
// watched can go on.
const boardKept = 10 * time.Minute

// watchBoard is the matrix as it was told to those who watch it: one for all, so
// that they see the same numbers. It exists while somebody watches, and a while
// longer.
type watchBoard struct {
	mu    sync.Mutex
	board *topology.Board
	// generation numbers the boards of a reign, for tokens.
	generation uint64
	used       time.Duration
}

// watched is how far a watch has got.
type watched struct{ generation, sequence uint64 }

// token is the place in words; from is part of the question.
func (w watched) token(epoch, from string) string {
	return fmt.Sprintf("%s.%x.%x.%s", epoch, w.generation, w.sequence, from)
}

// watchedOf reads a token; the zero value, from which nobody can go on, if it is
// of another reign or question.
func watchedOf(token, epoch, from string) watched {
	rest, ours := strings.CutPrefix(token, epoch+".")
	parts := strings.SplitN(rest, ".", 3)
	if !ours || len(parts) != 3 || parts[2] != from {
		return watched{}
	}
	generation, err := strconv.ParseUint(parts[0], 16, 64)
	sequence, err2 := strconv.ParseUint(parts[1], 16, 64)
	if err != nil || err2 != nil {
		return watched{}
	}
	return watched{generation, sequence}
}

// post brings the board up to date and answers where it stands, and its regions.
func (b *watchBoard) post(v *topology.View, now time.Duration) (watched, []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = now
	if b.board == nil || !b.board.Post(v) {
		b.board = topology.NewBoard(v)
		b.generation++
	}
	return watched{b.generation, b.board.Sequence()}, b.board.Names()
}

// idle drops a board that nobody has looked at for long.
func (b *watchBoard) idle(now time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now-b.used > boardKept {
		b.board = nil
	}
}

// row answers the edges from region i that were posted after a place, false if
// the board is another one by now.
func (b *watchBoard) row(i int, after watched) ([]topology.Edge, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.board == nil || b.generation != after.generation {
		return nil, false
	}
	return b.board.Row(i, after.sequence), true
}

// tell sends what was posted since a place, everything if one cannot go on from
// there, in messages of which the last one has the token. It answers the new
// place, or the old one when another board came in between.
func (b *watchBoard) tell(v *topology.View, now time.Duration, after watched, epoch, from string, send func(*nusav1.MatrixResponse) error) (watched, error) {
	at, names := b.post(v, now)
	reset := after.generation != at.generation || after.sequence > at.sequence
	if reset {
		after = watched{generation: at.generation}
	}
	if after == at {
		return at, nil
	}
	same, err := topo.Tell(names, from, func(i int) ([]topology.Edge, bool) { return b.row(i, after) }, reset, at.token(epoch, from), send)
	switch {
	case err != nil:
		return after, err
	case !same:
		return watched{}, nil
	}
	return at, nil
}
