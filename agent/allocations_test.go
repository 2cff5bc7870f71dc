package agent

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/driver"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestAllocationsThroughTheTunnel(t *testing.T) {
	m, drv := newMaster(t), newMock()
	m.order(testOrder("aaaa-1", 1, "mock", map[string]any{"stdout": "hello\n", "stderr": "oops\n"}))
	m.order(testOrder("aaaa-2", 2, "mock", map[string]any{"stdout": strings.Repeat("x", 100_000), "run_time": "1ms"}, batch))
	runAgent(t, testConfig(t, t.TempDir(), drv, m.addr))
	m.untilState("aaaa-1", running)
	m.untilState("aaaa-2", complete)
	client := nusav1.NewAllocationsClient(m.conn())
	list, err := client.List(t.Context(), &nusav1.ListAllocationsRequest{})
	if err != nil || len(list.GetAllocations()) != 1 || list.GetAllocations()[0].GetId() != "aaaa-1" {
		t.Fatalf("list %v: %v", list, err)
	}
	list, err = client.List(t.Context(), &nusav1.ListAllocationsRequest{All: true})
	if err != nil || len(list.GetAllocations()) != 2 {
		t.Fatalf("list of all %v: %v", list, err)
	}
	if _, err := client.Get(t.Context(), &nusav1.GetAllocationRequest{Id: "aaaa"}); err == nil {
		t.Error("an ambiguous prefix was taken")
	}
	if a, err := client.Get(t.Context(), &nusav1.GetAllocationRequest{Id: "aaaa-1"}); err != nil || a.GetState() != running {
		t.Errorf("get %v: %v", a, err)
	}
	if out, errs := readLogs(t, client, &nusav1.LogsRequest{Allocation: "aaaa-2", Follow: true, Stdout: true}); len(out) != 100_000 || errs != "" {
		t.Errorf("%d bytes, stderr %q", len(out), errs)
	}
	if out, errs := readLogs(t, client, &nusav1.LogsRequest{Allocation: "aaaa-1"}); out != "hello\n" || errs != "oops\n" {
		t.Errorf("stdout %q, stderr %q", out, errs)
	}
	// The log stream ends when the allocation is stopped.
	o := testOrder("aaaa-1", 3, "mock", nil)
	o.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
	done := make(chan string)
	go func() {
		out, _ := readLogs(t, client, &nusav1.LogsRequest{Allocation: "aaaa-1", Follow: true, Stdout: true})
		done <- out
	}()
	m.order(o)
	select {
	case out := <-done:
		if out != "hello\n" {
			t.Errorf("followed %q", out)
		}
	case <-time.After(patience):
		t.Error("following does not end")
	}
}

func readLogs(t *testing.T, c nusav1.AllocationsClient, req *nusav1.LogsRequest) (stdout, stderr string) {
	t.Helper()
	stream, err := c.Logs(t.Context(), req)
	if err != nil {
		t.Error(err)
		return "", ""
	}
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stdout, stderr
		}
		if err != nil {
			t.Errorf("logs: %v", err)
			return stdout, stderr
		}
		if proto.Size(chunk) > driver.MaxChunk+16 {
			t.Errorf("a chunk of %d bytes", proto.Size(chunk))
		}
		if chunk.GetStderr() {
			stderr += string(chunk.GetData())
		} else {
			stdout += string(chunk.GetData())
		}
	}
}
