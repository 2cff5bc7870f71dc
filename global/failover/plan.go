package failover

import (
	"fmt"
	"strings"
	"time"
)

// Plan says what to do now, and what will happen later.
type Plan struct {
	// Verdicts are the regions to declare lost, sorted by name.
	Verdicts []Verdict
	// Regions says what happens to each region that is silent or lost, sorted by name.
	Regions []RegionDue
	// Paused: there is a mass loss. A slot moves only if an operator stated that nothing runs in its
	// region. Alarm is the text of the alarm in one line. The alarm begins when a slot would have
	// moved, or when the regions can no longer hold a lease.
	Paused bool
	Alarm  string
	// Unconfirmed says, after a recovery of the store, which regions must first confirm what they
	// run, for example "until sea has confirmed what it runs: …". While it is not empty, a slot
	// moves only if an operator stated that nothing runs in its region.
	Unconfirmed string
	// Resign is the reason why this server must let another server become active. The server must
	// first store that it resigns (Snapshot.Resigned). Empty: the server does not resign.
	Resign string
	// Forget: the mass loss of Snapshot.Resigned is over, so the stored resignation can be removed.
	Forget bool
	// Next is the time until the next slot is due; 0: no slot will be due.
	Next time.Duration
}

// Verdict declares a region lost.
type Verdict struct{ Region, Why string }

// RegionDue is what happens to a region that is silent or lost.
type RegionDue struct {
	Region string
	// Lost is as in the snapshot.
	Lost bool
	// Moves: the first of its slots may move after In.
	Moves bool
	In    time.Duration
	// Message is the reason in one line.
	Message string
	// Slots are the slots of the region, in the order of the snapshot.
	Slots []SlotDue
}

// SlotDue is what happens to one slot of a region that is silent or lost.
type SlotDue struct {
	Slot
	// Moves: the slot may move after In; 0: at once.
	Moves bool
	In    time.Duration
	// Now: the slot may move now. It is due, its region is lost, and failover is not paused.
	Now bool
	// Drop: nothing runs, and nothing must run, so the slot may be removed.
	Drop bool
	// Message is the reason in one line.
	Message string
}

// Holds reports whether moves are held back, except those that an operator's statement allows.
func (p Plan) Holds() bool { return p.Paused || p.Unconfirmed != "" }

// held returns why moves are held back.
func (p Plan) held() string {
	if p.Unconfirmed != "" {
		return "waits " + p.Unconfirmed
	}
	return "paused by a mass loss"
}

// String prints the plan, one line for each fact.
func (p Plan) String() string {
	var b strings.Builder
	for _, v := range p.Verdicts {
		fmt.Fprintf(&b, "verdict %s: %s\n", v.Region, v.Why)
	}
	for _, r := range p.Regions {
		fmt.Fprintf(&b, "%s %s: %s\n", r.Region, when(r.Moves, false, r.In), r.Message)
		for _, s := range r.Slots {
			fmt.Fprintf(&b, "  %s %s: %s\n", s.Slot, when(s.Moves, s.Now, s.In), s.Message)
		}
	}
	if p.Alarm != "" {
		fmt.Fprintf(&b, "alarm: %s\n", p.Alarm)
	}
	if p.Paused && p.Alarm == "" {
		fmt.Fprintln(&b, "paused")
	}
	if p.Unconfirmed != "" {
		fmt.Fprintf(&b, "nothing moves %s\n", p.Unconfirmed)
	}
	if p.Resign != "" {
		fmt.Fprintf(&b, "resign: %s\n", p.Resign)
	}
	if p.Forget {
		fmt.Fprintln(&b, "forget the resignation")
	}
	if p.Next > 0 {
		fmt.Fprintf(&b, "next in %s\n", p.Next)
	}
	if b.Len() == 0 {
		return "nothing to do\n"
	}
	return b.String()
}

func when(moves, now bool, in time.Duration) string {
	switch {
	case now:
		return "now"
	case !moves:
		return "never"
	case in == 0:
		return "due"
	}
	return "in " + in.String()
}
