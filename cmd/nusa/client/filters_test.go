package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nusa-scheduler/nusa/internal/golden"
)

// listener is a server of an earlier version: it returns empty lists. It notes what lists are asked for.
type listener struct {
	mu    sync.Mutex
	asked []string
}

func (l *listener) serve(_ any, stream grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(stream)
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(name, "/"), "/", ".")))
	m, ok := d.(protoreflect.MethodDescriptor)
	if err != nil || !ok {
		return status.Error(codes.Unimplemented, name)
	}
	req := dynamicpb.NewMessage(m.Input())
	if err := stream.RecvMsg(req); err != nil {
		return err
	}
	if strings.Contains(string(m.Name()), "List") {
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(req)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		if err := json.Compact(&out, text); err != nil {
			return err
		}
		l.mu.Lock()
		l.asked = append(l.asked, fmt.Sprintf("%s %s", m.FullName(), out.String()))
		l.mu.Unlock()
	}
	return stream.SendMsg(&emptypb.Empty{})
}

// TestFiltersOfLists runs list commands with filters, and compares what they ask the server for, and what they say
// about an empty list.
func TestFiltersOfLists(t *testing.T) {
	l := &listener{}
	srv := grpc.NewServer(grpc.UnknownServiceHandler(l.serve))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(lis) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	f := &fake{notes: &notes{addr: lis.Addr().String()}}
	var out strings.Builder
	for _, line := range []string{
		"alloc list --state running,failed", "alloc list -l team=sea", "bus list --state failing,disabled", "deadletter list --state open -l team=sea", "deadletter list --state open,redriven",
		"intake list --state ok", "job list --state partial -l team=sea", "job override list --state scaled -l team=sea",
		"job schedule list --state paused,failing -l team=sea", "job schedule list", "node list --state ready --state cordoned -l rack=1", "region list --state lost -l eu=1",
		"reservation list --state completed -l team=sea", "semaphore list --state full", "semaphore list", "server list --state active", "service list --tag canary", "spare list --state ready",
		"task list --state failed -l team=sea", "token list --state used", "webhook list --state behind", "workflow list --state failed -l team=sea", "workflow list",
		"webhook list --state asleep", "job schedule list --state asleep", "workflow list --state asleep",
	} {
		l.asked = nil
		stdout, stderr, code := f.run(t.Context(), "", append(strings.Fields(line), "--addr", f.addr)...)
		fmt.Fprintf(&out, "$ nusa %s\n", line)
		for _, text := range l.asked {
			fmt.Fprintf(&out, "> %s\n", text)
		}
		for text := range strings.Lines(stdout) {
			out.WriteString(text)
		}
		for text := range strings.Lines(stderr) {
			out.WriteString("2> " + text)
		}
		if code != 0 {
			fmt.Fprintf(&out, "= %d\n", code)
		}
		out.WriteString("\n")
	}
	golden.File(t, "testdata/filters.txt", out.String())
}
