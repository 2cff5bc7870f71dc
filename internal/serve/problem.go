package serve

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxProblems bounds the details of a status, which travel in HTTP/2 headers:
// clients take 16 MiB of them, but proxies rarely more than 16 KiB.
const maxProblems = 32

// Invalid returns a status INVALID_ARGUMENT with the problems in its details
// (the first 32) and the first one in its message.
func Invalid(problems ...*nusav1.Problem) error { return Refuse(codes.InvalidArgument, problems...) }

// Refuse is Invalid with another code.
func Refuse(code codes.Code, problems ...*nusav1.Problem) error {
	message := code.String()
	if len(problems) > 0 {
		message = ProblemText(problems[0])
	}
	if n := len(problems) - 1; n > 0 {
		message = fmt.Sprintf("%s (and %d more)", message, n)
	}
	st := status.New(code, message)
	var details []protoadapt.MessageV1
	for _, p := range problems[:min(len(problems), maxProblems)] {
		details = append(details, protoadapt.MessageV1Of(p))
	}
	// Only codes.OK or a message that cannot be encoded fail here.
	if with, err := st.WithDetails(details...); err == nil {
		st = with
	}
	return st.Err()
}

// ProblemText is one line: "groups.web.count: must be at most 10000", with
// "line 3: " in front where a line is known.
func ProblemText(p *nusav1.Problem) string {
	text := p.GetMessage()
	if p.GetField() != "" {
		text = p.GetField() + ": " + text
	}
	if p.GetLine() > 0 {
		text = fmt.Sprintf("line %d: %s", p.GetLine(), text)
	}
	return text
}

// Problems returns the problems in the details of err's status, of any code.
func Problems(err error) []*nusav1.Problem {
	var out []*nusav1.Problem
	for _, d := range status.Convert(err).Details() {
		if p, ok := d.(*nusav1.Problem); ok {
			out = append(out, p)
		}
	}
	return out
}
