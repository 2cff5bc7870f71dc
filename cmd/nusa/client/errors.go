package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

// errorLines are the lines of an error: one, or one for each problem of an
// input.
func errorLines(err error) []string {
	var problems job.Errors
	if errors.As(err, &problems) {
		return strings.Split(problems.Error(), "\n")
	}
	var faults Faults
	if errors.As(err, &faults) {
		var out []string
		for _, f := range faults {
			out = append(out, oneLine(f))
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
	return []string{oneLine(err.Error())}
}

// oneLine makes one line of a text, without what could move a cursor.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, strings.Join(strings.Fields(s), " "))
}

var identifier = regexp.MustCompile(`[a-z]+(_[a-z]+)+`)

// advised is what servers say to do at the end of a message: it is said here
// for all of them.
var advised = regexp.MustCompile(`[:;,] (retry|look again)$`)

// plain is oneLine with reasons in words: servers write "no_capacity" in their
// messages.
func plain(s string) string {
	return identifier.ReplaceAllStringFunc(oneLine(s), func(id string) string {
		if _, known := nusav1.Reason_value["REASON_"+strings.ToUpper(id)]; known {
			return strings.ReplaceAll(id, "_", " ")
		}
		return id
	})
}

// readable says of a gRPC error what happened and what to do.
func (s *settings) readable(err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	e := &callError{message: advised.ReplaceAllString(plain(st.Message()), ""), problems: rpcerr.Problems(err), cause: err}
	// An error that stands in another: keep what was said around it.
	if st.Code() == codes.Unknown || errors.As(err, new(*exitError)) {
		return err
	}
	switch st.Code() {
	case codes.Unavailable:
		if lost(err) {
			e.message = fmt.Sprintf("the connection to %s was lost: try again", s.addr)
		} else if cause, found := dialing(st.Message()); found && s.master != "" {
			e.message = fmt.Sprintf("cannot reach %s, the last known master of region %s (%s): give another of its servers with --addr", s.addr, s.master, cause)
		} else if found {
			e.message = fmt.Sprintf("cannot reach %s (%s): %s", s.addr, cause, s.unreached())
		} else {
			e.message += ": try again in a few seconds"
		}
	case codes.DeadlineExceeded:
		e.message = fmt.Sprintf("no answer from %s within --timeout %s: try again, or wait longer", s.addr, job.FormatDuration(s.timeout))
	case codes.Canceled:
		e.message = "interrupted"
	case codes.ResourceExhausted:
		e.message += ": try again later"
	case codes.Unimplemented:
		// gRPC's own words for it; a server's say more.
		if strings.HasPrefix(e.message, "unknown ") || strings.HasPrefix(e.message, "method ") || strings.HasPrefix(e.message, "unexpected HTTP ") {
			e.message = fmt.Sprintf("%s does not know this call (%s): is it a Nusa server of this version?", s.addr, e.message)
		}
	case codes.Aborted:
		e.message += ": look at it again and repeat"
	}
	return e
}

// unreached is what to do where no server is: one that was named is another
// matter than the default.
func (s *settings) unreached() string {
	if s.addr == DefaultAddr {
		return fmt.Sprintf("is `%s dev` running? set --addr or NUSA_ADDR", s.nusa)
	}
	return "does a server listen there, for gRPC? set --addr or NUSA_ADDR to one that does"
}

// dialing finds why there is no connection, in an error of gRPC's own.
func dialing(message string) (string, bool) {
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

// lost says that a call's connection broke, so that the call may have had its
// effect. A connection that was never made is not lost.
func lost(err error) bool {
	m := status.Convert(err).Message()
	_, transport := dialing(m)
	return status.Code(err) == codes.Unavailable && transport &&
		!strings.Contains(m, "Error while dialing") && !strings.Contains(m, "server preface")
}

// transient says that a stream ended for a reason that may pass.
func transient(err error) bool {
	return status.Code(err) == codes.Unavailable
}

// interrupted says that the user ended it.
func (c *caller) interrupted() bool { return errors.Is(c.ctx.Err(), context.Canceled) }
