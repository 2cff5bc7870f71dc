package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
)

// Call returns the body of a command that makes one call and prints the result. show writes the result
// for people. arg is the first argument of the command, or empty.
func Call[T proto.Message](s *Settings, call func(ctx context.Context, c *Session, arg string) (T, error),
	show func(w *term.Screen, out T, arg string)) func(*cobra.Command, []string) error {
	return s.Run(func(c *Session, args []string) error {
		arg := ""
		if len(args) > 0 {
			arg = args[0]
		}
		ctx, cancel := c.WithTimeout()
		defer cancel()
		out, err := call(ctx, c, arg)
		if err != nil {
			return err
		}
		return c.Print(out, func(w *term.Screen) { show(w, out, arg) })
	})
}

// Done returns a show function of Call that says what became of an object.
func Done[T proto.Message](kind, done string) func(*term.Screen, T, string) {
	return func(w *term.Screen, _ T, name string) { fmt.Fprintf(w, "%s %s is %s\n", kind, name, done) }
}

// Pages calls page with the token of each page, until a page is the last one.
func Pages(page func(token string) (next string, err error)) error {
	for token := ""; ; {
		next, err := page(token)
		if err != nil || next == "" {
			return err
		}
		token = next
	}
}

// NewOnly returns the revision that a request to store an object names: any revision with --replace, and
// otherwise none, so that no object is changed by mistake.
func NewOnly(replace bool) int64 {
	if replace {
		return 0
	}
	return -1
}

// Exists adds the flag --replace to the error about an object that exists already.
func Exists(err error, replace bool) error {
	if replace || status.Code(err) != codes.Aborted {
		return err
	}
	return fmt.Errorf("%s: --replace changes it", status.Convert(err).Message())
}
