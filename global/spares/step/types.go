package step

import (
	"fmt"
	"time"
)

// Phase says what a spare waits for. A spare never returns to an earlier phase, except from Joining to
// Asking.
type Phase int

// The phases. After Releasing comes the outcome: one of the last four.
const (
	Reserving Phase = iota + 1
	Asking
	Joining
	Notifying
	Ready
	Releasing
	Released
	Cancelled
	Failed
	Expired
)

func (p Phase) String() string {
	names := [...]string{"", "reserving", "asking", "joining", "notifying", "ready", "releasing", "released", "cancelled", "failed", "expired"}
	if p < 0 || int(p) >= len(names) {
		return fmt.Sprint(int(p))
	}
	return names[p]
}

// Ended reports whether nothing follows any more.
func (p Phase) Ended() bool { return p >= Released }

// Hold says what is known of the place of one host.
type Hold int

// The states of a place. Lost: the reservation ended while the spare was notifying or ready.
const (
	Wanted Hold = iota
	Waiting
	Held
	Lost
	GivenBack
)

func (h Hold) String() string { return [...]string{"wanted", "waiting", "held", "lost", "released"}[h] }

// Host names a node.
type Host struct{ Name, Address, Region string }

// Place is the place of one host.
type Place struct {
	// Round is the number of the latest reservation. 0: none.
	Round int
	Hold  Hold
	Host  Host
}

// State is what is stored of a spare.
type State struct {
	Phase  Phase
	Places []Place
	// Asks is how often the provisioner was asked, without repeated attempts.
	Asks int
	// Failures counts the failed attempts of the call at hand, and Due is when it is due.
	Failures int
	Due      time.Time
	// Until is when the provisioner is asked again (Joining), or when the spare expires (Ready).
	Until time.Time
	// Outcome follows Releasing.
	Outcome Phase
	// Prepared is when all hosts were held.
	Prepared time.Time
	Message  string
}

// Config does not change during the life of a spare.
type Config struct {
	// Provisioner: there is a provisioner to ask. Callback: there is a URL to notify.
	Provisioner, Callback bool
	Deadline              time.Time
	// JoinTimeout is how long hosts may take to join. Hold is how long a ready spare is held.
	JoinTimeout, Hold time.Duration
}

// Known says what is known of a reservation.
type Known int

// What is known of a reservation. Over: it has ended. Refused: it cannot be made, and no other one could.
const (
	Absent Known = iota
	Open
	Done
	Over
	Refused
)

// Reservation is what is known of the latest reservation of a place.
type Reservation struct {
	Known Known
	Host  Host   // of Done
	Why   string // of Over and Refused
}

// Order is what a caller wants.
type Order int

// The orders of callers.
const (
	None Order = iota
	Release
	Cancel
)

// Result is how an attempt of a call ended.
type Result struct {
	// Key is that of the effect.
	Key string
	// Err is empty if the call succeeded.
	Err string
	// Final: another attempt cannot succeed.
	Final bool
	// After is how long the receiver wants no further attempt. 0: it does not say.
	After time.Duration
}

// Input is what is known now.
type Input struct {
	Now time.Time
	// Reservations has one element for each place.
	Reservations []Reservation
	// Result is that of the call at hand, or nil.
	Result *Result
	Order  Order
}

// Effect is what the shell has to do.
type Effect interface{ fmt.Stringer }

// Reserve makes the reservation of a place, unless it exists.
type Reserve struct {
	Place, Round int
	// Wait is how long it may wait for room.
	Wait time.Duration
}

// Free releases the reservation of a place.
type Free struct{ Place, Round int }

// Ask asks the provisioner for hosts.
type Ask struct {
	Key   string
	Count int
}

// Notify calls the upgrade controller.
type Notify struct{ Key string }

// Tell adds an event. It is given once.
type Tell struct{ Type, Text string }

func (e Reserve) String() string {
	return fmt.Sprintf("reserve place %d round %d wait %s", e.Place, e.Round, e.Wait)
}
func (e Free) String() string   { return fmt.Sprintf("free place %d round %d", e.Place, e.Round) }
func (e Ask) String() string    { return fmt.Sprintf("ask for %d key %s", e.Count, e.Key) }
func (e Notify) String() string { return "notify key " + e.Key }
func (e Tell) String() string   { return "tell " + e.Type + ": " + e.Text }
