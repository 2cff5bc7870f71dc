package reason

import (
	"strings"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// words holds the text of each reason. A text can stand alone or before a colon.
var words = map[nusav1.Reason]string{
	nusav1.Reason_REASON_REGION_NOT_ALLOWED:  "regions.allow of the job excludes it",
	nusav1.Reason_REASON_REGION_CORDONED:     "an operator cordoned it",
	nusav1.Reason_REASON_REGION_DISCONNECTED: "not connected",
	nusav1.Reason_REASON_REGION_LOST:         "it was declared lost",
	nusav1.Reason_REASON_REGION_NO_REPORT:    "no report of its capacity yet",
	nusav1.Reason_REASON_RTT_TOO_HIGH:        "round-trip time too high",
	nusav1.Reason_REASON_RTT_UNKNOWN:         "round-trip time not known well enough",
	nusav1.Reason_REASON_RTT_STALE:           "round-trip time measured too long ago, or unreachable",
	nusav1.Reason_REASON_NEAR_NOTHING:        "no region matches what near names",
	nusav1.Reason_REASON_NO_CAPACITY:         "no room for another instance",
	nusav1.Reason_REASON_SPREAD_LIMIT:        "limited by regions.spread",
	nusav1.Reason_REASON_COLOCATION:          "a group that must share its region does not fit there",
	nusav1.Reason_REASON_RETURNED_RECENTLY:   "it returned this work a moment ago",
	nusav1.Reason_REASON_LOWER_SCORE:         "others come first",
	nusav1.Reason_REASON_REGION_DRAINING:     "an operator moves its work away",
	nusav1.Reason_REASON_REGION_NO_COMMIT:    "it cannot commit to its log",
	nusav1.Reason_REASON_FEATURE_LEVEL:       "its version is too old for what the job asks",

	nusav1.Reason_REASON_NODE_LOST:           "the node has lost contact",
	nusav1.Reason_REASON_NODE_DRAINING:       "the node is being drained",
	nusav1.Reason_REASON_NODE_CORDONED:       "the node is cordoned",
	nusav1.Reason_REASON_POOL_MISMATCH:       "the node is in another pool",
	nusav1.Reason_REASON_DEDICATED:           "the node or the group shares with no other job",
	nusav1.Reason_REASON_KEPT_APART:          "an instance on the node has one of its apart tags",
	nusav1.Reason_REASON_DRIVER_MISSING:      "a driver that it needs is missing",
	nusav1.Reason_REASON_CAPABILITY_MISSING:  "the driver lacks a capability that it needs",
	nusav1.Reason_REASON_CONSTRAINT:          "a constraint does not match",
	nusav1.Reason_REASON_INSUFFICIENT_CPU:    "not enough cpu",
	nusav1.Reason_REASON_INSUFFICIENT_MEMORY: "not enough memory",
	nusav1.Reason_REASON_INSUFFICIENT_DISK:   "not enough disk",
	nusav1.Reason_REASON_INSUFFICIENT_GPU:    "not enough gpu",
	nusav1.Reason_REASON_PORT_CONFLICT:       "a port that it needs is in use",
	nusav1.Reason_REASON_PORTS_EXHAUSTED:     "no dynamic port is free",
	nusav1.Reason_REASON_INSTANCE_QUOTA:      "the node runs as many instances as its quota allows",
	nusav1.Reason_REASON_DECLINED:            "the agent declined it",
	nusav1.Reason_REASON_CONTROL_PLANE_HOST:  "the node hosts the control plane",
	nusav1.Reason_REASON_NO_FITTING_NODE:     "no node fits",
	nusav1.Reason_REASON_NO_NODES:            "the region has no nodes",
	nusav1.Reason_REASON_RESERVED:            "the node is reserved for an instance that has waited longer",
	nusav1.Reason_REASON_CONFIG_INVALID:      "the driver does not take the task's config",

	nusav1.Reason_REASON_UNSUPPORTED:           "the driver cannot run it",
	nusav1.Reason_REASON_START_FAILED:          "it did not start",
	nusav1.Reason_REASON_EXITED:                "it exited",
	nusav1.Reason_REASON_KILLED_BY_SIGNAL:      "it was killed by a signal",
	nusav1.Reason_REASON_HOST_REBOOTED:         "the host restarted",
	nusav1.Reason_REASON_MAX_RUNTIME:           "it ran longer than max_runtime",
	nusav1.Reason_REASON_LEASE_EXPIRED:         "contact was lost for longer than its lease",
	nusav1.Reason_REASON_RESTARTS_EXHAUSTED:    "it failed, and restart.attempts allows no further restart",
	nusav1.Reason_REASON_RESCHEDULES_EXHAUSTED: "it failed, and reschedule.attempts allows no further attempt",
	nusav1.Reason_REASON_RETRIES_EXHAUSTED:     "it failed, and its retry policy allows no further attempt",
	nusav1.Reason_REASON_OTHER_REGION:          "it failed, and its retry policy asks for another region",
	nusav1.Reason_REASON_PERMANENT_FAILURE:     "it failed twice with an error that a retry does not correct",
	nusav1.Reason_REASON_OUTPUT_INVALID:        "its output is too large, not UTF-8, or no plain file",
	nusav1.Reason_REASON_AGENT_BUSY:            "the agent is too busy",
	nusav1.Reason_REASON_AGENT_LEAVING:         "the agent is leaving",
	nusav1.Reason_REASON_STALE_ORDER:           "a newer order replaced it",
	nusav1.Reason_REASON_NOT_ALLOWED:           "the node's operator does not allow it",
	nusav1.Reason_REASON_SECRET_MISSING:        "the node does not hold a secret that it needs",
	nusav1.Reason_REASON_UNHEALTHY:             "it is not healthy",
	nusav1.Reason_REASON_NOT_HEALTHY_YET:       "it has not passed its health check yet",

	nusav1.Reason_REASON_STOPPED_BY_USER: "stopped by a user",
	nusav1.Reason_REASON_SUPERSEDED:      "a newer version replaced it",
	nusav1.Reason_REASON_OUT_OF_RANGE:    "the group has fewer instances now",
	nusav1.Reason_REASON_REVOKED:         "the region no longer owns it",
	nusav1.Reason_REASON_OVERRIDDEN:      "an operator's override in its region applies to it",
	nusav1.Reason_REASON_RESCHEDULED:     "another attempt replaced it",
	nusav1.Reason_REASON_BACKOFF:         "it waits before the next attempt",
	nusav1.Reason_REASON_REGION_LEASE:    "the region's lease ended",
	nusav1.Reason_REASON_PARALLEL:        "as many instances run as parallel allows",
	nusav1.Reason_REASON_FAILBACK:        "it returns to the region from which a loss moved it",
}

// Text returns the text of a reason; empty for REASON_UNSPECIFIED.
func Text(r nusav1.Reason) string {
	if t := words[r]; t != "" || r == nusav1.Reason_REASON_UNSPECIFIED {
		return t
	}
	// A newer version of Nusa has sent a reason that this one does not know.
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(r.String(), "REASON_")), "_", " ")
}

// WithMessage returns the text of a reason followed by a message. If the message begins
// with that text, WithMessage returns the message alone.
func WithMessage(r nusav1.Reason, message string) string {
	switch t := Text(r); {
	case t == "" || strings.HasPrefix(message, t):
		return message
	case message == "":
		return t
	default:
		return t + ": " + message
	}
}

// Begins reports whether a message begins with the text of a reason.
func Begins(message string) bool {
	for _, text := range words {
		if rest, found := strings.CutPrefix(message, text); found && (rest == "" || rest[0] == ':') {
			return true
		}
	}
	return false
}

// WithoutNumbers returns a text without its digits. Two texts that differ only in digits
// describe the same condition at different times.
func WithoutNumbers(text string) string {
	return strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' {
			return -1
		}
		return c
	}, text)
}
