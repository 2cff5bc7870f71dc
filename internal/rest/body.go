package rest

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Content types.
const (
	jsonType   = "application/json"
	linesType  = "application/x-ndjson"
	eventsType = "text/event-stream"
	yamlType   = "application/yaml"
)

// yamlTypes are the names of YAML that clients use.
var yamlTypes = []string{yamlType, "application/x-yaml", "text/yaml", "text/x-yaml"}

// maxBody bounds a body, in bytes, and maxJob a body with a job. One message of a stream has the
// same bounds.
const (
	maxBody = 4 << 20
	maxJob  = job.MaxSize
)

// limit is the bound of the body, in bytes.
func (o *operation) limit() int64 {
	if o.takesJob() {
		return maxJob
	}
	return maxBody
}

// readBody reads the body of a request and returns it as the JSON of the message that the operation
// takes. params are the fields in the path. set are fields of headers, if the whole request is the body.
// admit lets the server read a large body or a job file, until the function that it returns is called.
func (o *operation) readBody(w http.ResponseWriter, r *http.Request, params, set map[string]string, admit func() (func(), *problem)) ([]byte, *problem) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, o.limit()))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, tooLarge(o.limit())
	case err != nil:
		return nil, unread(err)
	case o.body == "" && len(data) > 0:
		return nil, refusal(http.StatusBadRequest, codes.InvalidArgument, "this operation takes no body: name its fields in the query")
	case o.body == "" || o.body == "*" && len(data) == 0 && len(set) == 0:
		return nil, nil
	case len(data) == 0 && len(set) > 0:
		return o.canonical([]byte("{}"), set)
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	asYAML := false
	for _, t := range yamlTypes {
		asYAML = asYAML || o.takesJob() && err == nil && kind == t
	}
	if (err != nil || kind != jsonType) && !asYAML {
		return nil, o.wrongType(w, r)
	}
	if len(data) == 0 {
		return nil, refusal(http.StatusBadRequest, codes.InvalidArgument, "the body is empty: it must be the "+strings.ReplaceAll(o.body, "_", " "))
	}
	if asYAML || len(data) >= largeBody {
		done, p := admit()
		if p != nil {
			return nil, p
		}
		defer done()
	}
	if o.takesJob() {
		spec, faults := readJob(data, asYAML)
		if len(faults) > 0 {
			return nil, invalid(faults...)
		}
		return o.marshalJob(spec, params)
	}
	return o.canonical(data, set)
}

// canonical checks a JSON body, and sets fields of it.
func (o *operation) canonical(data []byte, set map[string]string) ([]byte, *problem) {
	md := o.method.Input()
	if o.body != "*" {
		md = md.Fields().ByTextName(o.body).Message()
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(md.FullName())
	if err != nil {
		return nil, problemOf(err)
	}
	m := t.New()
	if faults := decode(data, m.Interface()); len(faults) > 0 {
		return nil, invalid(faults...)
	}
	if len(set) == 0 {
		return data, nil
	}
	for field, value := range set {
		query := url.Values{field: {value}}
		if err := runtime.PopulateQueryParameters(m.Interface(), query, utilities.NewDoubleArray(nil)); err != nil {
			return nil, invalid(&nusav1.Problem{Field: field, Message: clip(value) + " is wrong"})
		}
	}
	out, err := protojson.Marshal(m.Interface())
	if err != nil {
		return nil, problemOf(err)
	}
	return out, nil
}

// unread says why a body did not arrive.
func unread(err error) *problem {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return refusal(http.StatusRequestTimeout, codes.DeadlineExceeded, "the body did not arrive in time: send it at once, with its length in Content-Length")
	}
	return refusal(http.StatusBadRequest, codes.InvalidArgument, "the body ended before it was complete")
}

// tooLarge says that a body has more bytes than its bound.
func tooLarge(limit int64) *problem {
	return refusal(http.StatusRequestEntityTooLarge, codes.ResourceExhausted, fmt.Sprintf("the body has more than %d bytes", limit))
}

// wrongType says which content types the operation takes.
func (o *operation) wrongType(w http.ResponseWriter, r *http.Request) *problem {
	takes := jsonType
	switch {
	case o.takesJob():
		takes += ", " + yamlType
	case o.duplex():
		takes = linesType
	}
	w.Header().Set("Accept-"+strings.ToUpper(o.verb[:1])+strings.ToLower(o.verb[1:]), takes)
	given := "none"
	if t := r.Header.Get("Content-Type"); t != "" {
		given = clip(t)
	}
	return refusal(http.StatusUnsupportedMediaType, codes.InvalidArgument, fmt.Sprintf("the Content-Type is %s: send %s", given, strings.ReplaceAll(takes, ",", " or")))
}

// clip shortens a text of the caller.
func clip(s string) string {
	if len(s) > maxShown {
		s = s[:maxShown] + "…"
	}
	return fmt.Sprintf("%q", s)
}

// readJob reads a job: a job file in YAML or JSON, or the JSON of a nusa.v1.JobSpec, as the API
// returns it. The faults are those of the form that the text is nearer to.
func readJob(data []byte, asYAML bool) (*nusav1.JobSpec, []*nusav1.Problem) {
	name := "job.json"
	if asYAML {
		name = "job.yaml"
	}
	spec, err := job.Parse(data, name)
	if err == nil {
		return spec, nil
	}
	var errs job.Errors
	if !errors.As(err, &errs) {
		return nil, []*nusav1.Problem{{Message: err.Error()}}
	}
	faults := errs.Proto()
	if asYAML {
		return nil, faults
	}
	spec = &nusav1.JobSpec{}
	other := decode(data, spec)
	switch {
	case len(other) == 0:
		return spec, nil
	case len(other) < len(faults):
		faults = other
	}
	for _, f := range faults {
		if f.GetField() == "spec" {
			f.Message = "is no field of a job: the body is the job itself, so send only the value of spec"
		}
	}
	return nil, faults
}

// marshalJob returns the JSON of a job. A name in the path must be that of the job.
func (o *operation) marshalJob(spec *nusav1.JobSpec, params map[string]string) ([]byte, *problem) {
	for _, f := range []struct{ field, in string }{{"name", spec.GetName()}, {"namespace", spec.GetNamespace()}} {
		if want := params[o.body+"."+f.field]; want != "" && f.in != "" && f.in != want {
			return nil, invalid(&nusav1.Problem{Field: f.field, Message: fmt.Sprintf("is %q, but the path says %q", f.in, want)})
		}
	}
	data, err := protojson.Marshal(spec)
	if err != nil {
		return nil, problemOf(err)
	}
	return data, nil
}

// marshal is the JSON form of a message in responses, as the protos define it.
func marshal(m proto.Message) ([]byte, error) { return protojson.Marshal(m) }
