package gate

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// FuzzRequests: whatever request and token a client sends, the gate decides. Who has no role may do
// nothing that needs one.
func FuzzRequests(f *testing.F) {
	var methods []string
	inputs := map[string]protoreflect.MessageType{}
	protoregistry.GlobalFiles.RangeFilesByPackage("nusa.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				name := "/" + string(service.FullName()) + "/" + string(m.Name())
				if rowOf(name) == nil {
					continue // a service of plugins, which no server has
				}
				input, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
				if err != nil {
					f.Fatalf("%s: %v", name, err)
				}
				methods, inputs[name] = append(methods, name), input
			}
		}
		return true
	})
	slices.Sort(methods)
	ref, err := proto.Marshal(&nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: "pay", Name: "web@a", Region: "b"}})
	if err != nil {
		f.Fatal(err)
	}
	set, err := rights.New(&nusav1.AuthSet{Bindings: []*nusav1.AuthBinding{{Name: "admins", Role: "admin", Subjects: []string{"operator/jane"}}}})
	if err != nil {
		f.Fatal(err)
	}
	for n := range methods {
		f.Add(n, ref, "Bearer nusa_x", "")
		f.Add(n, []byte{}, "", "a")
	}
	f.Fuzz(func(t *testing.T, n int, raw []byte, token, region string) {
		method := methods[uint(n)%uint(len(methods))]
		req := inputs[method].New().Interface()
		if proto.Unmarshal(raw, req) != nil {
			return
		}
		ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(TokenHeader, token))
		if who, _, err := set.Token(tokenOf(ctx), time.Now()); err == nil {
			t.Fatalf("%q is the token of %v", token, who)
		}
		r := rowOf(method)
		call := &rights.Call{Set: set, Who: set.Operator("nobody"), Verb: r.verb, Kind: r.kind, Region: region}
		if err := decide(call, r, req); err == nil && r.verb != "" {
			t.Fatalf("nobody may call %s with %v", strings.TrimPrefix(method, "/nusa.v1."), req)
		}
	})
}
