package uplink

import (
	"slices"
	"time"
)

const (
	// maxTurns is how many sessions may send a large message at the same time. maxTurn is the
	// longest time of a turn, so that a region that does not read delays no other region.
	maxTurns = 16
	maxTurn  = time.Second
)

// turns lets only a few sessions send large messages at the same time, so that leases do not wait
// behind them. The state's lock guards it.
type turns struct {
	// since is when a session took its turn, or was woken for it.
	since   map[*session]time.Duration
	waiting []*session
}

// take reports whether a session may send a large message now. If not, the session is woken when it
// may.
func (t *turns) take(c *session, now time.Duration) bool {
	if t.since == nil {
		t.since = map[*session]time.Duration{}
	}
	for other, since := range t.since {
		if now-since >= maxTurn {
			delete(t.since, other)
		}
	}
	_, has := t.since[c]
	if has || len(t.since) < maxTurns {
		t.since[c] = now
		return true
	}
	if !slices.Contains(t.waiting, c) {
		t.waiting = append(t.waiting, c)
	}
	return false
}

// give ends a session's turn, or its wait for one. It wakes the session that has waited longest,
// which then has the turn, and calls give if it does not need the turn.
func (t *turns) give(c *session, now time.Duration) {
	delete(t.since, c)
	t.waiting = slices.DeleteFunc(t.waiting, func(w *session) bool { return w == c })
	if len(t.waiting) > 0 && len(t.since) < maxTurns {
		t.since[t.waiting[0]] = now
		t.waiting[0].wake()
		t.waiting = t.waiting[1:]
	}
}

// expire ends the turns that took too long, and wakes waiting sessions.
func (t *turns) expire(now time.Duration) {
	for c, since := range t.since {
		if now-since >= maxTurn {
			t.give(c, now)
		}
	}
}
