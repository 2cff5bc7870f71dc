package rpcerr

import (
	"fmt"

	"google.golang.org/grpc/codes"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxProblems bounds the problems in a status. A status is sent in HTTP/2 headers. gRPC
// clients accept 16 MiB of headers, but proxies rarely accept more than 16 KiB.
const maxProblems = 32

// Invalid returns a status INVALID_ARGUMENT. Its details hold the first 32 problems, and
// its message the first problem.
func Invalid(problems ...*nusav1.Problem) error { return Refuse(codes.InvalidArgument, problems...) }

// NoPage returns a status INVALID_ARGUMENT for a token of a page that no list has returned. field is the
// field of the request, page_token or page.
func NoPage(field, token string) error {
	return Invalid(&nusav1.Problem{Field: field, Message: fmt.Sprintf("%.40q is no page of this list: send next_%s of the previous response as it is, or leave the field out for the first page", token, field)})
}

// Refuse returns an error like Invalid, but with a code that the caller chooses.
func Refuse(code codes.Code, problems ...*nusav1.Problem) error {
	message := code.String()
	if len(problems) > 0 {
		message = ProblemText(problems[0])
	}
	if n := len(problems) - 1; n > 0 {
		message = fmt.Sprintf("%s (and %d more)", message, n)
	}
	return Error{Code: code, Message: message, Problems: problems}.Err()
}

// ProblemText returns a problem as one line, for example "line 3: groups.web.count: must
// be at most 10000". An unknown line is left out.
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

// Problems returns the problems in the status of err, whatever its code is.
func Problems(err error) []*nusav1.Problem { return From(err).Problems }
