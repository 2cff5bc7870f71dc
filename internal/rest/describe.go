package rest

import "github.com/nusa-scheduler/nusa/internal/lazyregexp"

// Operation describes an operation of the API, for its document and its tests.
type Operation struct {
	// Name is that of the RPC, for example "Jobs.Submit".
	Name string
	// Verb is for example "POST".
	Verb string
	// Path is the path with the names of the fields, for example "/v1/jobs/{job.namespace}/{job.name}".
	// Template is the path with short names, for example "/v1/jobs/{namespace}/{name}".
	Path, Template string
	// Body is the field of the request that is the body, "*" for the whole request, or empty.
	Body string
	// Streams: the response is a stream. Duplex: the request is one, too.
	Streams, Duplex bool
	// TakesJob: the body may be a job file.
	TakesJob bool
	// GivesJob: the response is a job, and may be a job file.
	GivesJob bool
	// Revision is the field that If-Match sets, and Token the one that Last-Event-ID sets. Empty: none.
	Revision, Token string
	// Idempotent: the operation takes an Idempotency-Key.
	Idempotent bool
	// Input and Output are the full names of the messages.
	Input, Output string
	// ResponseFields are the names of the fields of the response, or of its messages.
	ResponseFields []string
}

var longName = lazyregexp.New(`\{[^}]*\.([^}.]+)\}`)

// Operations returns all operations in the order of their paths.
func Operations() []Operation {
	var out []Operation
	for _, o := range operations() {
		var fields []string
		for i := range o.method.Output().Fields().Len() {
			fields = append(fields, string(o.method.Output().Fields().Get(i).Name()))
		}
		out = append(out, Operation{
			Name: o.name, Verb: o.verb, Path: o.path, Template: longName().ReplaceAllString(o.path, "{$1}"), Body: o.body,
			Streams: o.streams(), Duplex: o.duplex(), TakesJob: o.takesJob(), GivesJob: o.givesJob(), Revision: o.revision(), Token: o.token(),
			Idempotent: o.has("idempotency_key"),
			Input:      string(o.method.Input().FullName()), Output: string(o.method.Output().FullName()), ResponseFields: fields,
		})
	}
	return out
}

// Virtflow returns the operations of virtflow, which are not those of an RPC.
func Virtflow() []Operation {
	return []Operation{
		{Name: "Virtflow.Schedule", Verb: "POST", Path: "/schedule", Template: "/schedule", Body: "*"},
		{Name: "Virtflow.Result", Verb: "GET", Path: "/result/{task_id}", Template: "/result/{task_id}"},
		{Name: "Virtflow.Release", Verb: "DELETE", Path: "/result/{task_id}", Template: "/result/{task_id}"},
	}
}
