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

	"github.com/nusa-scheduler/nusa/internal/golden"
)

// listener is a server of an earlier version: it returns empty lists, or lists of one object whatever the filters. It notes
// what lists are asked for.
type listener struct {
	mu    sync.Mutex
	asked []string
	full  bool
	// after: after so many lists another server serves, with full turned round. 0: none does.
	after int
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
		if l.after > 0 && len(l.asked) == l.after+1 {
			l.full = !l.full
		}
		l.mu.Unlock()
	}
	out := dynamicpb.NewMessage(m.Output())
	for i, fields := 0, m.Output().Fields(); l.full && i < fields.Len(); i++ {
		if f := fields.Get(i); f.IsList() && f.Message() != nil && f.Name() != "errors" {
			out.Mutable(f).List().AppendMutable()
		}
	}
	return stream.SendMsg(out)
}

// serveLists serves a listener, and returns a CLI that asks it.
func serveLists(t *testing.T, l *listener) *fake {
	t.Helper()
	srv := grpc.NewServer(grpc.UnknownServiceHandler(l.serve))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(lis) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	return &fake{notes: &notes{addr: lis.Addr().String()}}
}

// TestFiltersOfEarlierVersions: a server of an earlier version ignores filters. The commands select by states themselves,
// and refuse labels. So nothing is dropped or run again that the labels do not select.
func TestFiltersOfEarlierVersions(t *testing.T) {
	f := serveLists(t, &listener{full: true})
	for line, want := range map[string]string{
		"alloc list -l a=b": "cannot select", "deadletter list -l a=b": "cannot select", "deadletter drop -l a=b": "cannot select",
		"deadletter redrive -l a=b": "cannot select", "job override list -l a=b": "cannot select", "job schedule list -l a=b": "cannot select",
		"workflow list -l a=b": "cannot select", "alloc list --state failed": "no allocations in", "bus list --state failing": "no buses in",
		"intake list --state failing": "no intakes in", "job list --state failed": "no jobs in", "job override list --state holding": "no overrides in",
		"job schedule list --state failing": "no schedules in", "node list --state lost": "no nodes in", "region list --state lost": "no regions in",
		"semaphore list --state waiting": "no semaphores in", "token list --state used": "no join tokens in", "webhook list --state behind": "no webhooks in",
		"workflow list --state failed": "no runs in",
	} {
		stdout, stderr, code := f.run(t.Context(), "", append(strings.Fields(line), "--addr", f.addr)...)
		if !strings.Contains(stdout+stderr, want) || (code != 0) != (want == "cannot select") {
			t.Errorf("%s: code %d: %s%s", line, code, stdout, stderr)
		}
	}
}

// TestStatesBeyondACutList: a server of an earlier version cuts its list before the command selects.
func TestStatesBeyondACutList(t *testing.T) {
	f := newFake(t)
	for line, want := range map[string]string{
		"alloc list --job earlier --state failed -o name":           "alloc-1198\nalloc-1199\n",
		"alloc list --job earlier --state failed -o name --limit 1": "alloc-1198\nnusa: there are more: use --limit, or narrow it with --job, --node or --region\n",
		"alloc list --job earlier --state lost --limit 0":           "nusa: --limit: 0 is not 1..10000\n",
		"job list --limit 1 -o name":                                "default/api\nnusa: there are more: use a greater --limit, or narrow it with --state, --label or --namespace\n",
		"job list --limit -1":                                       "nusa: --limit: -1 is negative; 0 is all\n",
	} {
		if out, errOut, _ := f.run(t.Context(), "", append(strings.Fields(line), "--addr", f.addr)...); out+errOut != want {
			t.Errorf("%s: %q, want %q", line, out+errOut, want)
		}
	}
}

// TestChangesByLabelsAcrossServers: servers of two versions serve one after the other, and the earlier one returns the list
// of what is changed. Then nothing is changed.
func TestChangesByLabelsAcrossServers(t *testing.T) {
	for _, line := range []string{"deadletter drop -l a=b", "deadletter redrive -l a=b"} {
		for _, l := range []*listener{{full: true, after: 1}, {full: true, after: 2}, {after: 1}} {
			f := serveLists(t, l)
			stdout, stderr, code := f.run(t.Context(), "", append(strings.Fields(line), "--addr", f.addr)...)
			if code == 0 || stdout != "" || !strings.Contains(stderr, "cannot select") {
				t.Errorf("%s, another server after %d lists: code %d: %s%s", line, l.after, code, stdout, stderr)
			}
		}
	}
}

// TestFiltersOfLists runs list commands with filters, and compares what they ask the server for, and what they say
// about an empty list.
func TestFiltersOfLists(t *testing.T) {
	l := &listener{}
	f := serveLists(t, l)
	var out strings.Builder
	for _, line := range []string{
		"alloc list --state running,failed", "alloc list -l team=sea", "bus list --state failing,disabled", "deadletter list --state open -l team=sea", "deadletter list --state open,redriven", "deadletter list --job web",
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
