package plugin

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// Error says why a call of a plugin failed.
type Error struct {
	// Plugin is the plugin's name. Verb is the call, such as "Start".
	Plugin, Verb string
	// Kind is an error of package driver or of package context. It is nil if the plugin
	// returned another error.
	Kind error
	// Text is the plugin's message, or how the plugin ended.
	Text string
	// LastLine is the last line that the plugin printed, if it crashed.
	LastLine string

	silent bool // the plugin was running and did not respond
}

// Error returns the text of the error. An example after a crash is "plugin qemu: Status:
// the driver does not respond now: it ended with exit code 2: panic: no image". An example
// of a refusal by the plugin is "plugin qemu: task cannot run: config.image: no such file".
func (e *Error) Error() string {
	text := "plugin " + e.Plugin + ": "
	if e.Kind == nil || e.Kind == driver.ErrUnavailable || e.Kind == driver.ErrContract {
		text += e.Verb + ": "
	}
	if e.Kind != nil && !strings.Contains(e.Text, e.Kind.Error()) {
		text += e.Kind.Error() + ": "
	}
	text += e.Text
	if e.LastLine != "" {
		text += ": " + e.LastLine
	}
	return strings.TrimSuffix(text, ": ")
}

// Unwrap returns the kind. An error of Start is also an ErrStart, unless its kind is
// ErrInvalid.
func (e *Error) Unwrap() []error {
	var out []error
	if e.Kind != nil {
		out = append(out, e.Kind)
	}
	if e.Verb == "Start" && e.Kind != driver.ErrInvalid {
		out = append(out, driver.ErrStart)
	}
	return out
}

// kinds maps errors to codes. On the plugin's side the first match counts, because an error
// may wrap several errors.
var kinds = []struct {
	err  error
	code codes.Code
}{
	{driver.ErrNotFound, codes.NotFound},
	{driver.ErrInvalid, codes.InvalidArgument},
	{driver.ErrStart, codes.Aborted},
	{driver.ErrNotRunning, codes.FailedPrecondition},
	{driver.ErrUnsupported, codes.Unimplemented},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
}

// errorToProto converts a driver's error for the agent.
func errorToProto(err error) error {
	if err == nil {
		return nil
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return status.Error(k.code, clip(err.Error(), maxMessage))
		}
	}
	return status.Error(codes.Unknown, clip(err.Error(), maxMessage))
}

// optional holds the calls that a plugin need not implement if it does not report their
// capabilities.
var optional = map[string]bool{"Exec": true, "Stats": true, "Update": true, "Renew": true, "Signal": true}

// readError converts an error that the plugin returned.
func readError(name, verb string, err error) *Error {
	s := status.Convert(err)
	out := &Error{Plugin: name, Verb: verb, Text: clip(s.Message(), maxMessage)}
	for _, k := range kinds {
		if k.code == s.Code() {
			out.Kind = k.err
		}
	}
	switch {
	case s.Code() == codes.Unimplemented && !optional[verb]:
		out.Kind = driver.ErrContract
	case s.Code() == codes.Unimplemented && verb == "Renew":
		out.Kind = driver.ErrInvalid
	case s.Code() == codes.ResourceExhausted && strings.Contains(s.Message(), "larger than max"):
		out.Kind = driver.ErrContract
	case s.Code() == codes.OK: // not a gRPC status
		out.Text = clip(err.Error(), maxMessage)
	}
	return out
}
