package recovery

import (
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/internal/suggest"
)

// maxNamed is the greatest number of regions that an alarm names.
const maxNamed = 5

// Waits returns the alarm while a recovered store waits for earlier leases. leases is the time
// until every such lease is over. bound is the time until everything that such a lease binds has
// ended, too. Waits returns "" when bound has passed.
func Waits(leases, bound time.Duration) string {
	if bound <= 0 {
		return ""
	}
	return fmt.Sprintf("the store was recovered: regions are welcomed in %s, when every earlier lease is over, and get leases in %s, when everything has ended that those leases bound",
		jobstatus.Span(max(0, leases)), jobstatus.Span(bound))
}

// Alarm returns the alarm while regions have not confirmed what they run. It returns "" if there
// are no such regions.
func Alarm(unconfirmed []string) string {
	if len(unconfirmed) == 0 {
		return ""
	}
	return fmt.Sprintf("the store was recovered: no region gets a lease and nothing moves by itself until these have confirmed what they run: %s; "+
		"`nusa region list` says what each waits for", suggest.List(unconfirmed, maxNamed))
}

// Refused says whether a region has called this server, and has said what it runs, while the store
// waits for `nusa server recover`.
func Refused(called, said bool) string {
	const until = ": it waits for `nusa server recover`"
	switch {
	case said:
		return "it has called and said what it runs" + until
	case called:
		return "it has called, and will say what it runs when it calls again" + until
	}
	return "it has not called since the election: is the network to its servers whole?"
}

// Note says why a region has not confirmed what it runs, and what to do. welcomed is the time until
// regions are welcomed. level is the feature level of the region. unordered is the number of
// instances that the region runs without an order.
func Note(name string, connected bool, welcomed time.Duration, level, unordered int) string {
	const since = "has not confirmed what it runs since the store was recovered"
	switch {
	case welcomed > 0:
		return fmt.Sprintf("is welcomed in %s, when every lease from before the recovery is over: nothing to do until then", jobstatus.Span(welcomed))
	case !connected:
		return fmt.Sprintf("%s, and until then no region gets a lease: connect it, or if it is gone for good: `nusa region lose %s`", since, name)
	case level < region.ConfirmLevel:
		return fmt.Sprintf("%s, and until then no region gets a lease; not all of its servers run this version, so it cannot confirm: upgrade them", since)
	case unordered > 0:
		return fmt.Sprintf("%s, and until then no region gets a lease; it still stops instances that the store does not order: %d; "+
			"if their node is gone for good: `nusa node remove`", since, unordered)
	}
	return since + ", and until then no region gets a lease; this takes some seconds, or after a restart of its servers until all its nodes have connected or every earlier lease is over"
}
