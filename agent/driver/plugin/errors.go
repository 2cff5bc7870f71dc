package plugin

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// Error is why a call of a plugin failed.
type Error struct {
	// Plugin is its name, Verb the call of the contract, such as "Start".
	Plugin, Verb string
	// Kind is one of package driver's errors, or of package context's; nil where
	// the plugin gave none.
	Kind error
	// Text is what it said, or what became of it.
	Text string
	// LastLine that it wrote on its standard error, where it crashed.
	LastLine string

	silent bool // it was there, and gave no answer
}

// Error reads "plugin qemu: Status: the driver cannot be asked now: it ended with
// exit code 2: panic: no image", or for what the plugin itself refused "plugin
// qemu: task cannot run: config.image: no such file".
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

// Unwrap returns the kind; whatever fails a Start but what can never be done is
// a start that failed.
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

// kinds of errors by code. The order matters on the plugin's side: an error may
// wrap several.
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

// wireError is a driver's error as the agent is told it.
func wireError(err error) error {
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

// optional verbs may be missing, as their capabilities say.
var optional = map[string]bool{"Exec": true, "Stats": true, "Update": true, "Renew": true}

// readError reads what a plugin answered; that it is gone is not for here.
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
	case s.Code() == codes.OK: // no status at all
		out.Text = clip(err.Error(), maxMessage)
	}
	return out
}
