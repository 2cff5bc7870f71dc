package cli

import "strconv"

// The exit codes. `job plan` has its own: 0 no change, 1 changes, 255 error.
const (
	ExitDone    = 0
	ExitFail    = 1
	ExitWaiting = 2 // accepted, but not placed or not healthy within the time
	ExitFailed  = 3 // accepted, but failed, so that waiting longer changes nothing
	// ExitReverted: the new version failed, and the job has the spec of an earlier version again.
	ExitReverted = 4
	ExitUnknown  = 2 // perhaps accepted (1 would mean that nothing was changed)
)

// ErrorCodeKey is the annotation with the exit code for errors of a command, if that code
// is not 1.
const ErrorCodeKey = "nusa-error-code"

// ExitError ends the process with the exit code Code. Err is nil if the messages were
// already printed.
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
