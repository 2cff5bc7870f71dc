package rest

import (
	"bytes"
	"context"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// unaryLimit bounds the time of a call that is no stream.
const unaryLimit = 25 * time.Second

// call is one request of an operation.
type call struct {
	op *operation
	// r is the request as the client sent it.
	r *http.Request
	w *writer
	// reader is of a request that is a stream.
	reader reader
}

type callKey struct{}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// around runs before the handler of each operation: it checks the request and gives the handler a
// request with what it needs, and nothing else of what the client sent.
func (a *api) around(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(plain http.ResponseWriter, r *http.Request, params map[string]string) {
		pattern, _ := runtime.HTTPPattern(r.Context())
		op := a.operations[r.Method+" "+pattern.String()]
		if op == nil {
			refusal(http.StatusNotFound, codes.NotFound, "there is no such operation: see /openapi.json").write(plain, r)
			return
		}
		w := newWriter(plain, r)
		defer func() { a.counted(op, w) }()
		defer w.end()
		ctx, end := context.WithCancel(r.Context())
		defer end()
		w.left = end
		c := &call{op: op, r: r, w: w}
		cleaned, p := a.clean(ctx, c, params)
		if p != nil {
			w.fail(p, r)
			return
		}
		if op.streams() {
			if !a.enter() {
				w.fail(tooMany(), r)
				return
			}
			defer a.leave()
			w.begun = func() { serve.Keep(r) }
			_ = w.control.SetWriteDeadline(time.Time{})
			w.streams, w.ping = true, "\n"
			w.Header().Set("Content-Type", linesType)
			if wantsEvents(r) {
				w.ping = ": nothing new\n\n"
				w.Header().Set("Content-Type", eventsType)
			}
			defer w.keep()()
		} else {
			var late func()
			ctx, late = context.WithTimeout(cleaned.Context(), unaryLimit)
			defer late()
			cleaned = cleaned.WithContext(ctx)
		}
		next(w, cleaned, params)
	}
}

// clean returns the request for the handler.
func (a *api) clean(ctx context.Context, c *call, params map[string]string) (*http.Request, *problem) {
	op, r := c.op, c.r
	auth, p := credential(r)
	if p != nil {
		return nil, p
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, refusal(http.StatusBadRequest, codes.InvalidArgument, "the query is malformed: "+err.Error())
	}
	faults := op.checkQuery(query)
	for name, value := range params {
		if !utf8.ValidString(value) {
			faults = append(faults, &nusav1.Problem{Field: name, Message: notText})
		}
	}
	if len(faults) > 0 {
		return nil, invalid(faults...)
	}
	set, p := op.headers(r)
	if p != nil {
		return nil, p
	}
	if op.body != "*" {
		for field, value := range set {
			query.Del(op.method.Input().Fields().ByName(protoreflect.Name(field)).JSONName())
			query.Set(field, value)
		}
		set = nil
	}
	body, p := op.readBody(c.w, r, params, set, func() (func(), *problem) { return a.admit(ctx, r, auth) })
	if p != nil {
		return nil, p
	}
	// The deadline of the server for the whole request would end the call.
	_ = c.w.control.SetReadDeadline(time.Time{})
	out := r.Clone(context.WithValue(ctx, callKey{}, c))
	out.Header = http.Header{"Content-Type": {jsonType}, "Accept": {jsonType}}
	if auth != "" {
		out.Header.Set("Authorization", auth)
	}
	if op.streams() && wantsEvents(r) {
		out.Header.Set("Accept", eventsType)
	}
	if op.givesJob() {
		c.w.Header().Add("Vary", "Accept")
		if wantsYAML(r) {
			out.Header.Set("Accept", yamlType)
		}
	}
	out.URL.RawQuery = query.Encode()
	out.Form = nil
	out.Body = io.NopCloser(bytes.NewReader(body))
	out.ContentLength = int64(len(body))
	return out, nil
}

// wantsEvents reports whether the client asks for server-sent events.
func wantsEvents(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), eventsType)
}

// wantsYAML reports whether the first content type that the client accepts is YAML.
func wantsYAML(r *http.Request) bool {
	first, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	kind, _, err := mime.ParseMediaType(first)
	return err == nil && slices.Contains(yamlTypes, kind)
}

// credential returns the access token as gRPC takes it, or "".
func credential(r *http.Request) (string, *problem) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		return "", nil
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || !printable(token) {
		return "", unauthenticated("send one access token as `Authorization: Bearer TOKEN`")
	}
	return "Bearer " + token, nil
}

// printable reports whether a text may be a token.
func printable(token string) bool {
	for _, c := range []byte(token) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return token != "" && len(token) <= 4096
}

// headers returns the fields of the request that HTTP has in headers.
func (o *operation) headers(r *http.Request) (map[string]string, *problem) {
	set := map[string]string{}
	if key := r.Header.Get("Idempotency-Key"); key != "" && o.has("idempotency_key") {
		set["idempotency_key"] = strings.Trim(key, `"`)
	}
	if id := r.Header.Get("Last-Event-ID"); id != "" && o.token() != "" {
		set[o.token()] = id
	}
	match, none := r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
	field := o.revision()
	if o.verb == http.MethodGet || match == "" && none == "" {
		return set, nil
	}
	if field == "" {
		return nil, refusal(http.StatusBadRequest, codes.InvalidArgument, "this operation takes neither If-Match nor If-None-Match: it does not check a revision")
	}
	switch n, err := strconv.ParseUint(strings.Trim(match, `"`), 10, 63); {
	case match == "" && none == "*":
		set[field] = "-1"
	case match == "" || none != "":
		return nil, refusal(http.StatusBadRequest, codes.InvalidArgument, "If-None-Match takes * only, and not together with If-Match")
	case err != nil || n == 0:
		return nil, refusal(http.StatusBadRequest, codes.InvalidArgument, `If-Match takes the ETag of an earlier response, for example "42"`)
	default:
		set[field] = strconv.FormatUint(n, 10)
	}
	return set, nil
}

// respond sets the headers of a response from its message.
func respond(ctx context.Context, w http.ResponseWriter, m proto.Message) error {
	c := callOf(ctx)
	if m == nil || c == nil || c.op.streams() {
		return nil
	}
	fields := m.ProtoReflect().Descriptor().Fields()
	if fd := fields.ByName("revision"); fd != nil && fd.Kind() == protoreflect.Int64Kind && !fd.IsList() {
		if n := m.ProtoReflect().Get(fd).Int(); n > 0 {
			tag := `"` + strconv.FormatInt(n, 10) + `"`
			w.Header().Set("ETag", tag)
		}
	}
	for _, page := range []struct{ from, to protoreflect.Name }{{"next_page_token", "page_token"}, {"next_page", "page"}} {
		fd := fields.ByName(page.from)
		if fd == nil || fd.Kind() != protoreflect.StringKind || c.op.verb != http.MethodGet || !c.op.has(string(page.to)) {
			continue
		}
		if next := m.ProtoReflect().Get(fd).String(); next != "" {
			query := c.r.URL.Query()
			query.Del(string(page.to))
			query.Del(fields.ByName(page.from).JSONName())
			query.Set(string(page.to), next)
			w.Header().Set("Link", "<"+c.r.URL.EscapedPath()+"?"+query.Encode()+`>; rel="next"`)
		}
	}
	return nil
}
