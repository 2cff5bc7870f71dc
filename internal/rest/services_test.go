package rest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nusa-scheduler/nusa/internal/rest/openapi"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		os.Stderr.WriteString(err.Error() + "\n")
		code = 1
	}
	os.Exit(code)
}

// Services and calls that are not for operators have no HTTP paths.
var (
	internalServices = map[string]bool{"Federation": true, "Dispatch": true, "Siblings": true, "Driver": true, "Identity": true, "Discovery": true}
	internalCalls    = map[string]bool{"Repairs.Slots": true, "Repairs.Orders": true, "Audit.Forward": true, "Reservations.Locate": true, "DeadLetters.Collect": true, "Tasks.Copy": true}
)

// TestEveryCallHasItsPath: each public RPC has a path, and the list of services has its service.
func TestEveryCallHasItsPath(t *testing.T) {
	mux := runtime.NewServeMux(runtime.WithMiddlewares(func(runtime.HandlerFunc) runtime.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request, _ map[string]string) { w.WriteHeader(http.StatusTeapot) }
	}))
	for _, register := range services {
		if err := register(t.Context(), mux, unused{}); err != nil {
			t.Fatal(err)
		}
	}
	routed := map[string]bool{}
	all := operations()
	for _, op := range all {
		routed[op.name] = true
		if internalServices[string(op.method.Parent().Name())] || internalCalls[op.name] {
			t.Errorf("%s is not for operators, but has the path %s", op.name, op.path)
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(op.verb, inBraces().ReplaceAllString(op.path, "x"), http.NoBody))
		if !op.duplex() && w.Code != http.StatusTeapot {
			t.Errorf("%s %s gets %d: is its service in the list?", op.verb, op.path, w.Code)
		}
	}
	protoregistry.GlobalFiles.RangeFilesByPackage("nusa.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				name := string(s.Name()) + "." + string(s.Methods().Get(j).Name())
				if !internalServices[string(s.Name())] && !internalCalls[name] && !routed[name] {
					t.Errorf("%s has no google.api.http option", name)
				}
			}
		}
		return true
	})
	if len(all) < 80 {
		t.Errorf("there are only %d operations", len(all))
	}
}

// unused is a connection without calls.
type unused struct{ grpc.ClientConnInterface }

// TestDocumentIsValid: the document is valid OpenAPI 3.1 and has every operation.
func TestDocumentIsValid(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(openapi.Document)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	ids := map[string]bool{}
	for _, op := range append(Operations(), Virtflow()...) {
		item := doc.Paths.Value(op.Template)
		if item == nil || item.GetOperation(op.Verb) == nil {
			t.Errorf("the document lacks %s %s", op.Verb, op.Template)
			continue
		}
		id := item.GetOperation(op.Verb).OperationID
		if id == "" || ids[id] {
			t.Errorf("%s %s has the id %q, which is empty or not unique", op.Verb, op.Template, id)
		}
		ids[id] = true
	}
}

// TestUnread: a body that does not arrive is the fault of the client, and the text has nothing of the
// server's sockets.
func TestUnread(t *testing.T) {
	for want, err := range map[int]error{
		http.StatusRequestTimeout: &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded},
		http.StatusBadRequest:     io.ErrUnexpectedEOF,
	} {
		if p := unread(err); p.Status != want || strings.Contains(p.Detail, err.Error()) {
			t.Errorf("%v: %d %s", err, p.Status, p.Detail)
		}
	}
}

// TestWrongValues: each wrong value of a body is named with its path, its line, and what the field takes.
func TestWrongValues(t *testing.T) {
	faults := decode([]byte(`{
  "description": 1.5,
  "roles": ["viewer", 7],
  "namespaces": "a",
  "ttl": "1h",
  "local": "x"
}`), &nusav1.CreateAccessTokenRequest{})
	faults = append(faults, decode([]byte(`{"role": {"rules": [{"verbs": "read"}, 5]}, "force": 1}`), &nusav1.SetRoleRequest{})...)
	faults = append(faults, decode([]byte(`{"spec": {"type": "JOB_TYPE_SERVISE", "labels": [], "groups": {"g": {"count": "many"}}}}`), &nusav1.SubmitRequest{})...)
	var got []string
	for _, f := range faults {
		got = append(got, fmt.Sprintf("%d:%d %s: %s", f.GetLine(), f.GetColumn(), f.GetField(), f.GetMessage()))
	}
	want := `2:18 description: 1.5 is wrong: it must be text
3:23 roles[1]: 7 is wrong: it must be text
4:17 namespaces: "a" is wrong: it must be a list
5:10 ttl: "1h" is wrong: it must be a number of seconds such as 90s or 0.5s
6:12 local: "x" is wrong: it must be true or false
1:31 role.rules[0].verbs: "read" is wrong: it must be a list
1:40 role.rules[1]: 5 is wrong: it must be an object
1:54 force: 1 is wrong: it must be true or false
1:19 spec.type: "JOB_TYPE_SERVISE" is wrong: do you mean JOB_TYPE_SERVICE?
1:49 spec.labels: [] is wrong: it must be an object
1:79 spec.groups.g.count: "many" is wrong: it must be a whole number, -2147483648..2147483647`
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("the faults are:\n%s\nwant:\n%s", text, want)
	}
}

// TestHeadersOfWholeBodies: headers set fields also where the whole request is the body.
func TestHeadersOfWholeBodies(t *testing.T) {
	for _, op := range operations() {
		if op.name != "Webhooks.Set" || op.verb != http.MethodPut {
			continue
		}
		for body, want := range map[string]string{`{"webhook": {"url": "https://x"}, "revision": "3"}`: "https://x", "": ""} {
			r := httptest.NewRequest(op.verb, "/v1/webhooks/a", strings.NewReader(body))
			r.Header.Set("Content-Type", jsonType)
			r.Header.Set("If-Match", `"5"`)
			set, p := op.headers(r)
			if p != nil {
				t.Fatal(p)
			}
			data, p := op.readBody(httptest.NewRecorder(), r, nil, set, nil)
			if p != nil {
				t.Fatal(p)
			}
			got := &nusav1.SetWebhookRequest{}
			if faults := decode(data, got); len(faults) > 0 || got.GetRevision() != 5 || got.GetWebhook().GetUrl() != want {
				t.Errorf("%q became %v: %v", body, got, faults)
			}
		}
		return
	}
	t.Error("there is no Webhooks.Set")
}

// TestBodiesWait: so many large bodies are read at a time, and the next one waits for its turn.
func TestBodiesWait(t *testing.T) {
	a := &api{bodies: make(chan struct{}, maxBodies)}
	var leave []func()
	for range maxBodies {
		done, p := a.enterBody(t.Context())
		if p != nil {
			t.Fatal(p)
		}
		leave = append(leave, done)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, p := a.enterBody(ended); p == nil || p.Status != http.StatusTooManyRequests || p.RetryAfter == 0 {
		t.Errorf("one more body: %v", p)
	}
	leave[0]()
	if _, p := a.enterBody(t.Context()); p != nil {
		t.Error(p)
	}
}
