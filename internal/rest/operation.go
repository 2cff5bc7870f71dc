package rest

import (
	"net/http"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// operation is one verb and path of the API.
type operation struct {
	// name is that of the RPC, for example "Jobs.Submit".
	name string
	// verb is for example "POST". path is for example "/v1/jobs/{job.namespace}/{job.name}".
	verb, path string
	// body is the field of the request that is the body, "*" for the whole request, or empty.
	body   string
	method protoreflect.MethodDescriptor
	// params are the fields of the request that are in the path.
	params []string
	// matches matches a path.
	matches *regexp.Regexp
}

var inBraces = lazyregexp.New(`\{([^}=]+)\}`)

// pattern is the path as package runtime of grpc-gateway writes it.
func (o *operation) pattern() string { return inBraces().ReplaceAllString(o.path, "{$1=*}") }

// streams reports whether the response is a stream.
func (o *operation) streams() bool { return o.method.IsStreamingServer() }

// duplex reports whether the request is a stream, too.
func (o *operation) duplex() bool { return o.method.IsStreamingClient() }

// takesJob reports whether the body is a job, which may be written as in a job file.
func (o *operation) takesJob() bool {
	f := o.method.Input().Fields().ByName(protoreflect.Name(o.body))
	return f != nil && f.Message() != nil && f.Message().FullName() == (&nusav1.JobSpec{}).ProtoReflect().Descriptor().FullName()
}

// givesJob reports whether the response is a job, which a client can ask for as a job file.
func (o *operation) givesJob() bool {
	return o.verb == http.MethodGet && !o.streams() && o.method.Output().FullName() == (&nusav1.Job{}).ProtoReflect().Descriptor().FullName()
}

// has reports whether the request has a field that a header can set: it is neither in the path nor the
// body, and there is one request.
func (o *operation) has(field string) bool {
	return !o.duplex() && o.body != field && !slices.Contains(o.params, field) && o.method.Input().Fields().ByName(protoreflect.Name(field)) != nil
}

// revision returns the field of the request that If-Match sets, or "".
func (o *operation) revision() string {
	for _, field := range []string{"check_revision", "revision"} {
		if o.has(field) && o.verb != http.MethodGet {
			return field
		}
	}
	return ""
}

// token returns the field of the request by which a stream resumes, or "".
func (o *operation) token() string {
	if o.streams() && o.has("token") {
		return "token"
	}
	return ""
}

// operations returns the operations of all services with HTTP paths.
func operations() []*operation {
	var out []*operation
	protoregistry.GlobalFiles.RangeFilesByPackage("nusa.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				out = append(out, operationsOf(methods.Get(j))...)
			}
		}
		return true
	})
	slices.SortFunc(out, func(a, b *operation) int { return strings.Compare(a.path+" "+a.verb, b.path+" "+b.verb) })
	return out
}

// operationsOf returns the operations of an RPC.
func operationsOf(m protoreflect.MethodDescriptor) []*operation {
	rule, ok := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
	if !ok || rule == nil {
		return nil
	}
	var out []*operation
	for _, r := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
		o := &operation{name: string(m.Parent().Name()) + "." + string(m.Name()), body: r.GetBody(), method: m}
		switch p := r.GetPattern().(type) {
		case *annotations.HttpRule_Get:
			o.verb, o.path = http.MethodGet, p.Get
		case *annotations.HttpRule_Put:
			o.verb, o.path = http.MethodPut, p.Put
		case *annotations.HttpRule_Post:
			o.verb, o.path = http.MethodPost, p.Post
		case *annotations.HttpRule_Delete:
			o.verb, o.path = http.MethodDelete, p.Delete
		case *annotations.HttpRule_Patch:
			o.verb, o.path = http.MethodPatch, p.Patch
		default:
			continue
		}
		for _, match := range inBraces().FindAllStringSubmatch(o.path, -1) {
			o.params = append(o.params, match[1])
		}
		parts := inBraces().Split(o.path, -1)
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		o.matches = regexp.MustCompile("^" + strings.Join(parts, "[^/]+") + "$")
		out = append(out, o)
	}
	return out
}
