// Package accept decides what a region tells the global tier about its slots:
// a pure function from the committed view and the scheduler's plan.
package accept

import (
	"time"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// DefaultGrace is how long an instance may be without a node before it is
// given back: long enough for a node that is just registering or freeing.
const DefaultGrace = time.Second

// Input is what a decision is made from.
type Input struct {
	// View is the committed state: nothing else may be answered.
	View *state.View
	// Unplaced of a plan over this view (or one that runs ahead of it).
	Unplaced []sched.Unplaced
	// LinkUp says that a session with the global tier is up; without one
	// instances wait here.
	LinkUp      bool
	NowUnixNano int64
	Grace       time.Duration // 0 = at once
}

// Return makes the command that gives unplaced instances back, nil when there
// is nothing to give back now, and after how long to ask again (0 = no need).
// A region's own jobs wait for ever. The answers are sent once the command is
// committed: see Answers.
func Return(in Input) (*state.AnswerSlots, time.Duration) { panic("todo") }

// Answers are all answers that hold in the committed view, by slot: to be sent
// and repeated until the orders change accordingly. Rejected and returned
// parts come from the log, accepted, stopped, revoked and done from the state.
func Answers(view *state.View) []state.Answer { panic("todo") }
