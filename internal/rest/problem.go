package rest

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// problemType is the content type of a problem (RFC 9457).
const problemType = "application/problem+json"

// problem is an error of the API, as RFC 9457 has it.
type problem struct {
	Type     string `json:"type"`
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail"`
	Instance string `json:"instance,omitempty"`
	// Code is the gRPC code, for example "NOT_FOUND". Reason and Metadata are for programs.
	Code     string            `json:"code"`
	Reason   string            `json:"reason,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	// Problems are the faults of the input.
	Problems []fault `json:"problems,omitempty"`
	// RetryAfter is in seconds. 0: no advice.
	RetryAfter float64 `json:"retry_after,omitempty"`
}

// fault is one fault of an input.
type fault struct {
	Field   string `json:"field,omitempty"`
	Line    int32  `json:"line,omitempty"`
	Column  int32  `json:"column,omitempty"`
	Message string `json:"message"`
	Reason  string `json:"reason,omitempty"`
}

// unavailableRetry is the advice for an error without one while the server cannot serve.
const unavailableRetry = time.Second

// statuses are the statuses of HTTP by gRPC code.
var statuses = map[codes.Code]int{
	codes.Canceled: 499, codes.InvalidArgument: http.StatusBadRequest, codes.DeadlineExceeded: http.StatusGatewayTimeout,
	codes.NotFound: http.StatusNotFound, codes.AlreadyExists: http.StatusConflict, codes.PermissionDenied: http.StatusForbidden,
	codes.ResourceExhausted: http.StatusTooManyRequests, codes.FailedPrecondition: http.StatusConflict, codes.Aborted: http.StatusConflict,
	codes.OutOfRange: http.StatusBadRequest, codes.Unimplemented: http.StatusNotFound, codes.Unavailable: http.StatusServiceUnavailable,
	codes.Unauthenticated: http.StatusUnauthorized,
}

// codeNames are the names of gRPC codes in JSON.
var codeNames = map[codes.Code]string{
	codes.Canceled: "CANCELLED", codes.Unknown: "UNKNOWN", codes.InvalidArgument: "INVALID_ARGUMENT", codes.DeadlineExceeded: "DEADLINE_EXCEEDED",
	codes.NotFound: "NOT_FOUND", codes.AlreadyExists: "ALREADY_EXISTS", codes.PermissionDenied: "PERMISSION_DENIED",
	codes.ResourceExhausted: "RESOURCE_EXHAUSTED", codes.FailedPrecondition: "FAILED_PRECONDITION", codes.Aborted: "ABORTED",
	codes.OutOfRange: "OUT_OF_RANGE", codes.Unimplemented: "UNIMPLEMENTED", codes.Internal: "INTERNAL", codes.Unavailable: "UNAVAILABLE",
	codes.DataLoss: "DATA_LOSS", codes.Unauthenticated: "UNAUTHENTICATED",
}

// problemOf converts the error of a call.
func problemOf(err error) *problem {
	e := rpcerr.From(err)
	p := &problem{Detail: e.Message, Code: codeNames[e.Code], Reason: string(e.Reason), Metadata: e.Metadata, Status: statuses[e.Code]}
	if p.Status == 0 {
		p.Status = http.StatusInternalServerError
	}
	if e.Code == codes.Unavailable && e.RetryAfter == 0 {
		e.RetryAfter = unavailableRetry
	}
	if e.Code == codes.Unimplemented {
		p.Detail = "this server does not serve the call: ask a server of the other tier, or one of a later version (" + e.Message + ")"
	}
	p.RetryAfter = e.RetryAfter.Seconds()
	p.Problems = faultsOf(e.Problems)
	return p.titled()
}

func faultsOf(problems []*nusav1.Problem) []fault {
	var out []fault
	for _, f := range problems {
		one := fault{Field: f.GetField(), Line: f.GetLine(), Column: f.GetColumn(), Message: f.GetMessage()}
		if f.GetReason() != 0 {
			one.Reason = f.GetReason().String()
		}
		out = append(out, one)
	}
	return out
}

// refusal returns a problem of HTTP itself, with a status that no gRPC code stands for.
func refusal(status int, code codes.Code, detail string) *problem {
	return (&problem{Status: status, Code: codeNames[code], Detail: detail}).titled()
}

// invalid returns a problem with the faults of an input.
func invalid(faults ...*nusav1.Problem) *problem { return problemOf(rpcerr.Invalid(faults...)) }

// titled sets the type and the title.
func (p *problem) titled() *problem {
	p.Title = http.StatusText(p.Status)
	if p.Status == 499 {
		p.Title = "Client Closed Request"
	}
	p.Type = "urn:nusa:error:" + p.Code
	if p.Reason != "" {
		p.Type = "urn:nusa:error:" + p.Reason
	}
	return p
}

// write sends the problem as the response to a request.
func (p *problem) write(w http.ResponseWriter, r *http.Request) {
	p.Instance = r.URL.EscapedPath()
	h := w.Header()
	h.Set("Content-Type", problemType)
	h.Set("Cache-Control", "no-store")
	h.Del("ETag")
	h.Del("Link")
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(p.RetryAfter))))
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="nusa"`)
	}
	text, err := json.Marshal(p)
	if err != nil { // not for strings and numbers
		text = []byte(`{}`)
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(text, '\n'))
}

// frame is the last message of a stream that fails.
func (p *problem) frame(r *http.Request) []byte {
	p.Instance = r.URL.EscapedPath()
	text, err := json.Marshal(map[string]*problem{"error": p})
	if err != nil { // not for strings and numbers
		text = []byte(`{"error":{}}`)
	}
	return text
}

// stale turns the conflict of a request with If-Match or If-None-Match into the status of HTTP for it.
func (p *problem) stale(r *http.Request) *problem {
	if p.Code == codeNames[codes.Aborted] && (r.Header.Get("If-Match") != "" || r.Header.Get("If-None-Match") != "") {
		p.Status = http.StatusPreconditionFailed
		return p.titled()
	}
	return p
}

// unauthenticated returns an error for an Authorization header that has no access token.
func unauthenticated(text string) *problem {
	return problemOf(status.Error(codes.Unauthenticated, text))
}
