package rest

import (
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
	internalServices = map[string]bool{"Federation": true, "Dispatch": true, "Siblings": true, "Driver": true, "Identity": true}
	internalCalls    = map[string]bool{"Repairs.Slots": true, "Repairs.Orders": true, "Audit.Forward": true, "Reservations.Locate": true}
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
		mux.ServeHTTP(w, httptest.NewRequest(op.verb, inBraces.ReplaceAllString(op.path, "x"), http.NoBody))
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
	for _, op := range Operations() {
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
