package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// callError is a failed call, with what to do about it.
type callError struct {
	message  string
	problems []*nusav1.Problem
	cause    error
}

func (e *callError) Error() string { return e.message }
func (e *callError) Unwrap() error { return e.cause }

// Faults are several things wrong with one input, a line each.
type Faults []string

func (f Faults) Error() string { return strings.Join(f, "\n") }

// ErrorLines are the lines of an error: one, or one for each problem of an
// input.
func ErrorLines(err error) []string {
	var problems job.Errors
	if errors.As(err, &problems) {
		return strings.Split(problems.Error(), "\n")
	}
	var faults Faults
	if errors.As(err, &faults) {
		var out []string
		for _, f := range faults {
			out = append(out, term.OneLine(f))
		}
		return out
	}
	var call *callError
	if errors.As(err, &call) && len(call.problems) > 0 {
		var out []string
		for _, p := range call.problems {
			out = append(out, rpcerr.ProblemText(p))
		}
		return out
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		return []string{fmt.Sprintf("%s: %v", path.Path, path.Err)}
	}
	return []string{term.OneLine(err.Error())}
}

// advised is what servers say to do at the end of a message: it is said here
// for all of them.
var advised = regexp.MustCompile(`[:;,] (retry|look again)$`)

// Explain says of a gRPC error what happened and what to do.
func (s *Settings) Explain(err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	e := &callError{message: advised.ReplaceAllString(term.Plain(st.Message()), ""), problems: rpcerr.Problems(err), cause: err}
	// An error that stands in another: keep what was said around it.
	if st.Code() == codes.Unknown || errors.As(err, new(*ExitError)) {
		return err
	}
	switch st.Code() {
	case codes.Unavailable:
		if ConnectionLost(err) {
			e.message = fmt.Sprintf("the connection to %s was lost: try again", s.Addr)
		} else if cause, found := dialCause(st.Message()); found && s.Master != "" {
			e.message = fmt.Sprintf("cannot reach %s, the last known master of region %s (%s): give another of its servers with --addr", s.Addr, s.Master, cause)
		} else if found {
			e.message = fmt.Sprintf("cannot reach %s (%s): %s", s.Addr, cause, s.unreachedAdvice())
		} else {
			e.message += ": try again in a few seconds"
		}
	case codes.DeadlineExceeded:
		e.message = fmt.Sprintf("no answer from %s within --timeout %s: try again, or wait longer", s.Addr, job.FormatDuration(s.Timeout))
	case codes.Canceled:
		e.message = "interrupted"
	case codes.ResourceExhausted:
		e.message += ": try again later"
	case codes.Unimplemented:
		// gRPC's own words for it; a server's say more.
		if strings.HasPrefix(e.message, "unknown ") || strings.HasPrefix(e.message, "method ") || strings.HasPrefix(e.message, "unexpected HTTP ") {
			e.message = fmt.Sprintf("%s does not know this call (%s): is it a Nusa server of this version?", s.Addr, e.message)
		}
	case codes.Aborted:
		e.message += ": look at it again and repeat"
	}
	return e
}

// unreachedAdvice is what to do where no server is: one that was named is another
// matter than the default.
func (s *Settings) unreachedAdvice() string {
	if s.Addr == DefaultAddr {
		return fmt.Sprintf("is `%s dev` running? set --addr or NUSA_ADDR", s.Program)
	}
	return "does a server listen there, for gRPC? set --addr or NUSA_ADDR to one that does"
}

// dialCause finds why there is no connection, in an error of gRPC's own.
func dialCause(message string) (string, bool) {
	if !strings.Contains(message, "connection error") && !strings.Contains(message, "transport") &&
		!strings.Contains(message, "error reading from server") && !strings.Contains(message, "server preface") {
		return "", false
	}
	for _, known := range []string{"connection refused", "no such host", "no route to host", "network is unreachable", "i/o timeout", "connection reset"} {
		if strings.Contains(message, known) {
			return known, true
		}
	}
	return "no gRPC answer there", true
}

// ConnectionLost says that a call's connection broke, so that the call may have had its
// effect. A connection that was never made is not lost.
func ConnectionLost(err error) bool {
	m := status.Convert(err).Message()
	_, transport := dialCause(m)
	return status.Code(err) == codes.Unavailable && transport &&
		!strings.Contains(m, "Error while dialing") && !strings.Contains(m, "server preface")
}

// MayPass says that a stream ended for a reason that may pass.
func MayPass(err error) bool {
	return status.Code(err) == codes.Unavailable
}
