package job

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxProblems is how many faults of one file are told at once.
const maxProblems = 20

// Problem is one thing that is wrong with a job, and where.
type Problem struct {
	// File is the name Parse was given; empty when the input was a message.
	File string
	// Line and Column are 1-based; 0 when the input was a message.
	Line, Column int
	// Field is a path such as "groups.web.count"; empty when it is the whole.
	Field   string
	Message string
	Reason  nusav1.Reason
}

// Error is one line: hello.yaml:12:7: groups.web.cuont: unknown field.
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

// Proto is the problem as it travels in the details of a gRPC status.
func (p Problem) Proto() *nusav1.Problem {
	return &nusav1.Problem{Field: p.Field, Line: int32(p.Line), Column: int32(p.Column), Message: p.Message, Reason: p.Reason}
}

// Errors is at least one problem, in the order of the input, at most 20.
type Errors []Problem

// Error is one line per problem.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, p := range e {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Proto is every problem as it travels in the details of a gRPC status.
func (e Errors) Proto() []*nusav1.Problem {
	out := make([]*nusav1.Problem, len(e))
	for i, p := range e {
		out[i] = p.Proto()
	}
	return out
}

// err is e as an error: nil when there is no problem, sorted and cut
// otherwise.
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
