package cli

import "strconv"

// Exit codes. `job plan` has its own: 0 no change, 1 changes, 255 error.
const (
	ExitDone    = 0
	ExitFail    = 1
	ExitWaiting = 2 // accepted, but not placed or not healthy in time
	ExitFailed  = 3 // accepted, but failed: waiting longer changes nothing
	ExitUnknown = 2 // perhaps accepted; 1 would mean that nothing was changed
)

// ErrorCodeKey is the annotation of a command whose errors have an exit code other than 1.
const ErrorCodeKey = "nusa-error-code"

// ExitError ends the process with a code. Err is nil when the messages were printed already.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return "exit code " + strconv.Itoa(e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }
