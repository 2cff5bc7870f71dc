package nodes

// sendState says whether a goroutine sends on a session, and whether more is due. At
// most one goroutine sends at a time, and the turn queue has a session at most once.
type sendState uint8

const (
	// sendIdle: nothing is due.
	sendIdle sendState = iota
	// sendQueued: the session waits in the turn queue.
	sendQueued
	// sendActive: a goroutine sends.
	sendActive
	// sendActiveQueued: a goroutine sends, and the session is still in the queue.
	sendActiveQueued
	// sendAgain: a goroutine sends, and afterwards checks again what is due.
	sendAgain
	// sendAgainQueued: as sendAgain, and the session is still in the queue.
	sendAgainQueued
	// sendFailed: a send failed. Nothing more is sent; the receiver also gets the
	// stream's error.
	sendFailed
)

// request notes that something is due. It returns whether the caller must put
// the session into the turn queue.
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

// start notes that something is due at once. It returns whether the caller must
// send. If not, the goroutine that sends checks again.
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

// takeTurn notes that the session left the turn queue. It returns whether the
// caller must send.
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

// finish notes that everything due has been sent. It returns whether the caller must
// check again.
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
