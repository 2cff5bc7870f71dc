package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// callError is the error of a failed call, with advice in its message.
type callError struct {
	message  string
	problems []*nusav1.Problem
	cause    error
}

func (e *callError) Error() string { return e.message }
func (e *callError) Unwrap() error { return e.cause }

// Faults are several errors in one input, one line each.
type Faults []string

func (f Faults) Error() string { return strings.Join(f, "\n") }

// ErrorLines returns the lines of an error. An error about an input has one line for each
// problem. Other errors have one line.
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

// Locate adds the lines of a job file to the problems in an error, which a server reports with field names only. at is the
// place of the job in the file, from 0.
func Locate(err error, data []byte, file string, at int) error {
	var problems job.Errors
	if !errors.As(err, &problems) {
		for _, p := range rpcerr.Problems(err) {
			problems = append(problems, job.Problem{Field: p.GetField(), Message: p.GetMessage(), Reason: p.GetReason()})
		}
	}
	if !slices.ContainsFunc(problems, func(p job.Problem) bool { return p.Field != "" }) {
		return err
	}
	return job.Locate(data, file, at, problems)
}

// Explain turns the error of a call into one line that says what happened and what to do.
// Other errors stay as they are.
func (c *Session) Explain(err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	// The error wraps a status, so the text around the status must stay.
	if st.Code() == codes.Unknown || errors.As(err, new(*ExitError)) {
		return err
	}
	e := &callError{message: term.OneLine(st.Message()), problems: rpcerr.Problems(err), cause: err}
	switch st.Code() {
	case codes.Unavailable:
		e.message = c.unavailable(err, e.message)
	case codes.DeadlineExceeded:
		e.message = fmt.Sprintf("no response from %s within --timeout %s: try again, or wait longer", c.Addr, job.FormatDuration(c.Timeout))
	case codes.Canceled:
		e.message = "interrupted"
	case codes.ResourceExhausted:
		if rpcerr.From(err).Reason != rpcerr.ReasonStoreFull {
			e.message += ": try again later"
		}
	case codes.Unimplemented:
		if rpcerr.UnknownCall(err) {
			e.message = fmt.Sprintf("%s does not know this call (%s): is it a Nusa server of this version?", c.Addr, e.message)
		}
	case codes.Aborted:
		e.message += ": look at the present state and repeat"
	}
	return e
}

// unavailable says which case applies: the connection could not be encrypted, no server was
// reached, the connection broke, or the server cannot serve the call now.
func (c *Session) unavailable(err error, message string) string {
	if failed := c.creds.err(); failed != nil && rpcerr.TransportFailure(err) != rpcerr.NoFailure {
		return fmt.Sprintf("no encrypted connection to %s: %s: is %s right, and does the server have an identity?", c.Addr, term.OneLine(failed.Error()), whatIdentity(c))
	}
	switch rpcerr.TransportFailure(err) {
	case rpcerr.Broken:
		return fmt.Sprintf("the connection to %s was lost: try again", c.Addr)
	case rpcerr.NotConnected:
		cause := dialProblem(c.client.DialError())
		if c.Master != "" {
			return fmt.Sprintf("cannot reach %s, the last known master of region %s (%s): give another of its servers with --addr", c.Addr, c.Master, cause)
		}
		advice := c.unreachedAdvice()
		if _, local := socketPath(c.Addr); c.client.DialError() == nil && c.Identity == "" && c.RootsFile == "" && !local {
			advice = fmt.Sprintf("no Nusa server listens there, or it has an identity, and this client needs one, too: --identity (or NUSA_IDENTITY), or `%s login`", c.Program)
		}
		return fmt.Sprintf("cannot reach %s (%s): %s", c.Addr, cause, advice)
	}
	return message + ": try again in a few seconds"
}

// unreachedAdvice says what to do if no server is at the address. It suggests nusa dev only
// for the default address, because nusa dev listens only on that address.
func (s *Settings) unreachedAdvice() string {
	if s.Addr == DefaultAddr {
		return fmt.Sprintf("start `%s dev`, or name a server with --addr or NUSA_ADDR", s.Program)
	}
	if _, local := socketPath(s.Addr); local {
		return "is it the nusa.sock in the data directory of a server that runs, and is this its user, or root?"
	}
	return "no Nusa server listens there: set --addr or NUSA_ADDR to the gRPC address of a server"
}

// dialProblem says briefly why a connection could not be made. A nil error means that a
// program accepted the connection but does not speak gRPC.
func dialProblem(err error) string {
	var name *net.DNSError
	var timeout interface{ Timeout() bool }
	switch {
	case err == nil:
		return "no gRPC answer there"
	case errors.As(err, &name):
		return "no such host"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	}
	var number syscall.Errno
	if errors.As(err, &number) {
		return number.Error()
	}
	return term.OneLine(err.Error())
}

// ConnectionLost reports whether the connection broke during a call. In that case the call
// may have taken effect.
func ConnectionLost(err error) bool { return rpcerr.TransportFailure(err) == rpcerr.Broken }

// MayPass reports whether the reason for which a stream ended may pass.
func MayPass(err error) bool {
	return status.Code(err) == codes.Unavailable
}
