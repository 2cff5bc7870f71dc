package flow

import (
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/job/steps"
)

// Rule says how a step of a run is carried out.
type Rule struct {
	// Approval: the step waits for an approval first.
	Approval bool
	// When: the step has a further condition, see View.When.
	When bool
	// Items is the number of items. -1: the step has no foreach.
	Items int
	// Uses are the steps whose outputs the step uses. It does not start in the plan in which one of them ends.
	Uses []int
	// Wrong says why the step cannot start, for example because a list for its items is none.
	Wrong string
	// Semaphores: an item starts only if it has the units that it needs, see View.Has.
	Semaphores bool
	// AtOnce bounds the items that are active at once.
	AtOnce int
	// Limit is how often the step may be tried again, after Backoff and then twice as long each time.
	Limit   int
	Backoff time.Duration
	// Retry has the ends after which it is tried again.
	Retry map[steps.End]bool
	// Timeout bounds an attempt, and an approval. 0: no bound.
	Timeout time.Duration
}

// MaxBackoff bounds the pause before an attempt.
const MaxBackoff = time.Hour

// Phase is the phase of a run.
type Phase uint8

// The phases. Exiting: only on_exit runs. Resetting: steps are made ready to run again.
const (
	Running Phase = iota
	Canceling
	Exiting
	Resetting
)

// Stage is how far an item is.
type Stage uint8

// The stages of an item.
const (
	Idle     Stage = iota
	Approval       // waits for an approval
	Active         // its job has not ended
	Stopping       // its job has the order to stop
	Backoff        // waits for the next attempt
	Done
)

// Item is the state of one item of a step. A step without foreach has one item.
type Item struct {
	Stage Stage
	// End is how the item ended, or in stage Stopping how it will end.
	End steps.End
	// Tries counts the attempts that have begun since the latest retry by a caller.
	Tries int
	// Until is when an attempt or an approval times out, or when the next attempt begins. Zero: never.
	Until time.Time
	// Approved: a caller has approved the step.
	Approved bool
}

// Step is the state of a step.
type Step struct {
	// End is None until the step has ended.
	End steps.End
	// Items has one item for a step without foreach, and one if its list is empty.
	Items []Item
	// Active is the number of items in the stages Active and Stopping.
	Active int
	// Stale: the step is to be reset, and has not been.
	Stale bool
}

// Snapshot is what is known of a run.
type Snapshot struct {
	Graph *steps.Graph
	Rules []Rule // by step
	Steps []Step
	Phase Phase
	// Outcome is how the run will end, in the phase Exiting.
	Outcome Outcome
	// Why belongs to Outcome.
	Why string
	// Open is the number of steps that have not ended, without on_exit.
	Open int
	// Active is the number of items in the stages Active and Stopping, and Begun counts those in Approval and
	// Backoff, too.
	Active, Begun int
	// MaxParallel bounds Active.
	MaxParallel int
	// OneFirst: only one job may be active, because its region decides about the others.
	OneFirst bool
	// From is the step of the latest retry, in the phase Resetting.
	From int
}

// View answers questions about the world.
type View struct {
	// Job returns how the job of an active item ended, and a text about it. None: it has not.
	Job func(step, item int) (steps.End, string)
	// Has reports whether an item has the units of semaphores that it needs.
	Has func(step, item int) bool
	// When returns the value of the further condition of a step.
	When func(step int) (bool, error)
}

// Outcome is how a run ends.
type Outcome uint8

// The outcomes.
const (
	Undecided Outcome = iota
	Succeeded
	Failed
	Canceled
)

var outcomes = [...]string{"undecided", "succeeded", "failed", "canceled"}

// String returns, for example, "succeeded".
func (o Outcome) String() string { return outcomes[o] }

// Do is a kind of action.
type Do uint8

// The actions.
const (
	Start  Do = iota // begin an attempt
	Await            // wait for an approval
	Stop             // stop the job of an attempt
	Retry            // wait for the next attempt
	Finish           // note the end
	Reset            // make a step ready to run again
)

var verbs = [...]string{"start", "await", "stop", "retry", "finish", "reset"}

// Whole is the Item of an action about all items of a step with foreach. Only Finish has it.
const Whole = -1

// Action is one decision about an item.
type Action struct {
	Do         Do
	Step, Item int
	// End is how the item ends, or after Stop will end.
	End   steps.End
	Until time.Time
	Why   string
}

// Apply returns what becomes of an item.
func (a Action) Apply(it Item) Item {
	switch a.Do {
	case Start:
		return Item{Stage: Active, Tries: it.Tries + 1, Until: a.Until, Approved: it.Approved}
	case Await:
		return Item{Stage: Approval, Until: a.Until}
	case Stop:
		return Item{Stage: Stopping, End: a.End, Tries: it.Tries, Approved: it.Approved}
	case Retry:
		return Item{Stage: Backoff, Tries: it.Tries, Until: a.Until, Approved: it.Approved}
	case Finish:
		return Item{Stage: Done, End: a.End, Tries: it.Tries, Approved: it.Approved}
	}
	return Item{}
}

// String returns, for example, "start step 3".
func (a Action) String() string {
	out := fmt.Sprintf("%s step %d", verbs[a.Do], a.Step)
	if a.Item > 0 {
		out += fmt.Sprintf(" item %d", a.Item)
	}
	if a.End != steps.None {
		out += " " + a.End.String()
	}
	if a.Why != "" {
		out += ": " + a.Why
	}
	return out
}

// Plan is what follows.
type Plan struct {
	// Actions are to be carried out in order. Any number of them at the end may be left for later.
	Actions []Action
	// Held are steps that could start if there were room.
	Held []int
	// Waits are items, as step and item, that could start if they had units of semaphores.
	Waits [][2]int
	// Left are steps that were not looked at, because there were too many actions.
	Left []int
	// Phase is the next phase, if Changes. Ended: the run ends with Outcome.
	Changes bool
	Phase   Phase
	Ended   bool
	Outcome Outcome
	Why     string
}

// Idle reports whether nothing follows.
func (p *Plan) Idle() bool { return len(p.Actions) == 0 && !p.Changes && !p.Ended }
