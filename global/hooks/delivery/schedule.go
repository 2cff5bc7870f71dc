package delivery

import "time"

// delays are the times before each attempt, as the Standard Webhooks specification proposes. The
// first attempt is made at once.
var delays = [...]time.Duration{
	0, 5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour,
	5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

const (
	// MaxAttempts is the number of attempts after which a delivery is given up.
	MaxAttempts = len(delays)
	// jitter is the share by which a delay is made longer or shorter.
	jitter = 0.1
	// MaxPause bounds how long a Retry-After holds back all deliveries to an endpoint.
	MaxPause = time.Hour
	// maxDelay bounds how long a Retry-After holds back the delivery that it is about.
	maxDelay = 24 * time.Hour
)

// Status codes with a meaning of their own.
const (
	statusGone            = 410
	statusTooManyRequests = 429
	statusUnavailable     = 503
)

// Outcome is the result of an attempt.
type Outcome struct {
	// Status is the HTTP status. 0: there was no response.
	Status int
	// RetryAfter is the time that the endpoint asked to wait. 0: it did not ask.
	RetryAfter time.Duration
}

// OK reports whether the endpoint accepted the event.
func (o Outcome) OK() bool { return o.Status >= 200 && o.Status <= 299 }

// Verdict is what follows from an attempt.
type Verdict int

const (
	// Delivered: the endpoint accepted the event.
	Delivered Verdict = iota
	// Retry: another attempt follows.
	Retry
	// GiveUp: the last attempt failed.
	GiveUp
	// Disable: the endpoint wants no more events. The event stays in the queue.
	Disable
)

// Decision is a verdict with its times.
type Decision struct {
	Verdict Verdict
	// Wait is the time until the next attempt of the delivery, for Retry.
	Wait time.Duration
	// Pause is how long no attempt at all is made to the endpoint.
	Pause time.Duration
}

// Decide returns what follows from the outcome of an attempt. failed is the number of earlier
// attempts of the delivery that failed. random is in [0, 1).
func Decide(failed int, o Outcome, random float64) Decision {
	switch {
	case o.OK():
		return Decision{Verdict: Delivered}
	case o.Status == statusGone:
		return Decision{Verdict: Disable}
	}
	var d Decision
	asked := time.Duration(0)
	if o.Status == statusTooManyRequests || o.Status == statusUnavailable {
		asked = max(0, o.RetryAfter)
		d.Pause = min(asked, MaxPause)
	}
	failed++
	if failed >= MaxAttempts {
		d.Verdict = GiveUp
		return d
	}
	d.Verdict = Retry
	d.Wait = max(time.Duration(float64(delays[failed])*(1-jitter+2*jitter*random)), min(asked, maxDelay))
	return d
}
