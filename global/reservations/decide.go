package reservations

import (
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// noNodes begins the message of a reservation that got no room. It is the text of the virtflow API.
const noNodes = "No available nodes"

// facts are what the active server knows of a reservation and its job.
type facts struct {
	state nusav1.ReservationState
	// wait is how long the reservation may wait for room, and waited is how long it has.
	wait, waited time.Duration
	// gone: there is no job any more. stopped: the job was stopped.
	gone, stopped bool
	// ended is how the job ended: complete, failed or unspecified.
	ended nusav1.JobState
	// refused: the placer has found no room for the job since the job was submitted.
	refused bool
	// region runs the instance. "" means that no region says so.
	region string
	// changed: something about the job has changed since the reservation was last located.
	changed bool
	// why is the obstacle of the job, for people.
	why string
}

// verdict is what follows from facts.
type verdict struct {
	// state is the state that the reservation must get. Unspecified: it stays.
	state   nusav1.ReservationState
	message string
	// locate: ask the region on which node the instance is.
	locate bool
}

// decide is a pure function. A reservation that was completed once no longer waits for room: while it has
// no node, it is being moved.
func decide(f facts) verdict {
	const failed, released, expired = nusav1.ReservationState_RESERVATION_STATE_FAILED, nusav1.ReservationState_RESERVATION_STATE_RELEASED, nusav1.ReservationState_RESERVATION_STATE_EXPIRED
	processing := f.state == nusav1.ReservationState_RESERVATION_STATE_PROCESSING
	switch {
	case f.state != nusav1.ReservationState_RESERVATION_STATE_COMPLETED && !processing:
		return verdict{}
	case f.ended == nusav1.JobState_JOB_STATE_COMPLETE:
		return verdict{state: expired, message: "the ttl has passed"}
	case f.ended == nusav1.JobState_JOB_STATE_FAILED:
		return verdict{state: failed, message: join("the instance has failed", f.why)}
	case f.stopped:
		return verdict{state: released, message: "the job was stopped"}
	case f.gone:
		return verdict{state: released, message: "the job was removed"}
	case f.region != "":
		return verdict{locate: processing || f.changed}
	case !processing:
		return verdict{}
	case f.wait == 0 && f.refused:
		return verdict{state: failed, message: join(noNodes, f.why)}
	case f.wait == 0:
		// Without an answer from a region in this time, there is no decision to wait for.
		f.wait = undecided
	}
	if f.waited >= f.wait {
		return verdict{state: failed, message: join(noNodes, f.why)}
	}
	return verdict{}
}

// undecided bounds how long a reservation with a wait of 0 may stay undecided, for example because its
// region does not answer.
const undecided = 10 * time.Second

func join(text, why string) string {
	if why == "" {
		return text
	}
	return text + ": " + why
}
