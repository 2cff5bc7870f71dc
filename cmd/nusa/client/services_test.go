package client

import (
	"reflect"
	"testing"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nusa-scheduler/nusa/client"
)

// TestEveryServiceHasItsClient: each service for operators has a method of the Go client, named like the
// service.
func TestEveryServiceHasItsClient(t *testing.T) {
	checked := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("nusa.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			public := false
			for j := range s.Methods().Len() {
				public = public || proto.HasExtension(s.Methods().Get(j).Options(), annotations.E_Http)
			}
			if !public {
				continue
			}
			checked++
			if _, ok := reflect.TypeFor[*client.Client]().MethodByName(string(s.Name())); !ok {
				t.Errorf("Client has no method %s: add it to client/client.go", s.Name())
			}
		}
		return true
	})
	if checked < 15 {
		t.Errorf("only %d services were found", checked)
	}
}
