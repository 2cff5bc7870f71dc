package job

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxProblems bounds the problems that are reported for one file.
const maxProblems = 20

// Problem is one fault of a job, with its position.
type Problem struct {
	// File is the name that Parse got; empty if the input was a protobuf message.
	File string
	// Line and Column count from 1. They are 0 if the input was a protobuf message.
	Line, Column int
	// Field is a path such as "groups.web.count". It is empty if the problem concerns the
	// whole input.
	Field   string
	Message string
	Reason  nusav1.Reason
}

// Error returns one line, for example "hello.yaml:12:7: groups.web.cuont: unknown field".
func (p Problem) Error() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File + ":")
		if p.Line > 0 {
			fmt.Fprintf(&b, "%d:%d:", p.Line, p.Column)
		}
		b.WriteByte(' ')
	}
	if p.Field != "" {
		b.WriteString(p.Field + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Proto converts the problem for the details of a gRPC status.
func (p Problem) Proto() *nusav1.Problem {
	return &nusav1.Problem{Field: p.Field, Line: int32(p.Line), Column: int32(p.Column), Message: p.Message, Reason: p.Reason}
}

// Errors holds 1..20 problems in the order of the input.
type Errors []Problem

// Error returns one line per problem.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, p := range e {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Proto converts the problems for the details of a gRPC status.
func (e Errors) Proto() []*nusav1.Problem {
	out := make([]*nusav1.Problem, len(e))
	for i, p := range e {
		out[i] = p.Proto()
	}
	return out
}

// err returns the problems as an error, sorted and at most maxProblems. It returns nil if
// there are none.
func (e Errors) err() error {
	if len(e) == 0 {
		return nil
	}
	slices.SortStableFunc(e, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if len(e) > maxProblems {
		more := len(e) - maxProblems + 1
		e = append(e[:maxProblems-1:maxProblems-1], Problem{File: e[0].File, Message: fmt.Sprintf("and %d more problems", more)})
	}
	return e
}
