package nodes

// sendState says whether a goroutine sends on a session, and whether more is due. At most
// one goroutine sends at a time. The session is in the turn queue at most once.
type sendState uint8

const (
	// sendIdle: nothing is due.
	sendIdle sendState = iota
	// sendQueued: the session waits in the turn queue.
	sendQueued
	// sendActive: a goroutine sends.
	sendActive
	// sendActiveQueued: a goroutine sends, and the session is also in the queue.
	sendActiveQueued
	// sendAgain: a goroutine sends, and then checks again what is due.
	sendAgain
	// sendAgainQueued: like sendAgain, and the session is also in the queue.
	sendAgainQueued
	// sendFailed: a send failed, and no further message is sent. The receiver also gets the
	// stream's error.
	sendFailed
)

// request records that a message is due. It returns whether the caller must put the session
// into the turn queue.
func (s *sendState) request() (enqueue bool) {
	switch *s {
	case sendIdle:
		*s = sendQueued
		return true
	case sendActive:
		*s = sendAgain
	case sendActiveQueued:
		*s = sendAgainQueued
	}
	return false
}

// start records that a message is due at once. It returns whether the caller must send. If
// false, the goroutine that already sends will check again.
func (s *sendState) start() bool {
	switch *s {
	case sendIdle:
		*s = sendActive
		return true
	case sendQueued:
		*s = sendActiveQueued
		return true
	case sendActive:
		*s = sendAgain
	case sendActiveQueued:
		*s = sendAgainQueued
	}
	return false
}

// takeTurn records that the session left the turn queue. It returns whether the caller must
// send.
func (s *sendState) takeTurn() bool {
	switch *s {
	case sendQueued:
		*s = sendActive
		return true
	case sendActiveQueued, sendAgainQueued:
		*s = sendAgain
	}
	return false
}

// finish records that everything that was due has been sent. It returns whether the caller
// must check again.
func (s *sendState) finish() (again bool) {
	switch *s {
	case sendActive:
		*s = sendIdle
	case sendActiveQueued:
		*s = sendQueued
	case sendAgain:
		*s = sendActive
		return true
	case sendAgainQueued:
		*s = sendActiveQueued
		return true
	}
	return false
}
