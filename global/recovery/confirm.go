package recovery

import (
	"fmt"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/internal/jobstatus"
)

// maxNamed is how many regions an alarm names.
const maxNamed = 5

// Waits returns what operators see until leases of before a recovery are over, and until what
// they bind has ended; empty once it has.
func Waits(leases, bound time.Duration) string {
	if bound <= 0 {
		return ""
	}
	return fmt.Sprintf("the store was recovered: regions are welcomed in %s, when every earlier lease is over, and get leases in %s, when everything has ended that those leases bound",
		jobstatus.Span(max(0, leases)), jobstatus.Span(bound))
}

// Alarm returns what operators see until regions have confirmed what they run; empty for no
// regions.
func Alarm(unconfirmed []string) string {
	if len(unconfirmed) == 0 {
		return ""
	}
	shown := unconfirmed[:min(len(unconfirmed), maxNamed)]
	text := strings.Join(shown, ", ")
	if more := len(unconfirmed) - len(shown); more > 0 {
		text = fmt.Sprintf("%s and %d more", text, more)
	}
	return fmt.Sprintf("the store was recovered: no region gets a lease and nothing moves by itself until these have confirmed what they run: %s; "+
		"`nusa region list` says what each waits for", text)
}

// Note says about one region why it has not confirmed what it runs, and what to do. unordered
// counts the instances that it runs without an order.
func Note(region string, connected bool, unordered int) string {
	const since = "has not confirmed what it runs since the store was recovered"
	switch {
	case !connected:
		return fmt.Sprintf("%s: no region gets a lease before; connect it, or if it is gone for good: `nusa region lose %s`", since, region)
	case unordered > 0:
		return fmt.Sprintf("%s: no region gets a lease before; instances that the store does not order: %d, they are being stopped; "+
			"if their node is gone for good: `nusa node remove`", since, unordered)
	}
	return since + ": no region gets a lease before; this takes some seconds"
}
