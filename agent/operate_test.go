package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRestartAndSignal: a signal reaches the process. An operator's restart begins another run,
// also if the restart policy allows none.
func TestRestartAndSignal(t *testing.T) {
	m, dir := newMaster(t), t.TempDir()
	m.order(testOrder("aaaa", 1, "process", sh(`trap 'echo got it' USR1; echo run $$; while :; do sleep 0.05; done`), func(_ *nusav1.AllocOrder, g *nusav1.Group) {
		none := int32(0)
		g.Tasks["main"].Restart = &nusav1.Restart{Attempts: &none}
	}))
	startProcess(t, filepath.Join(dir, "data"), m.addr)
	m.untilState("aaaa", running)
	client := nusav1.NewAllocationsClient(m.conn())
	untilOutput(t, client, "run")
	r, err := client.Signal(t.Context(), &nusav1.SignalAllocationRequest{Allocation: "aaaa", Signal: "usr1"})
	if err != nil || len(r.GetTasks()) != 1 || r.GetTasks()[0] != "main" {
		t.Fatalf("signal: %v: %v", r, err)
	}
	untilOutput(t, client, "got it")
	for what, req := range map[string]*nusav1.SignalAllocationRequest{
		"no signal":   {Allocation: "aaaa", Signal: "SIGNOTHING"},
		"no task":     {Allocation: "aaaa", Task: "other", Signal: "HUP"},
		"a bad start": {Allocation: "aa", Signal: "HUP"},
	} {
		if _, err := client.Signal(t.Context(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := client.Restart(t.Context(), &nusav1.RestartAllocationRequest{Allocation: "aaaa"}); err != nil {
		t.Fatal(err)
	}
	m.until("the second run", func() bool {
		s := m.reports["aaaa"].GetTasks()["main"]
		return s.GetRun() == 2 && s.GetState() == running && s.GetRestarts() == 0
	})
	if _, err := client.Restart(t.Context(), &nusav1.RestartAllocationRequest{Allocation: "bbbb"}); status.Code(err) != codes.NotFound {
		t.Errorf("restart of an unknown allocation: %v", err)
	}
}

// untilOutput follows the output of a task until it contains want.
func untilOutput(t *testing.T, client nusav1.AllocationsClient, want string) {
	t.Helper()
	untilOutputOf(t, client, "aaaa", want)
}

// untilOutputOf is like untilOutput, for any allocation.
func untilOutputOf(t *testing.T, client nusav1.AllocationsClient, alloc, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := client.Logs(ctx, &nusav1.LogsRequest{Allocation: alloc, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	for out := ""; !strings.Contains(out, want); {
		chunk, err := stream.Recv()
		if err != nil {
			t.Fatalf("output %q, not %q: %v", out, want, err)
		}
		out += string(chunk.GetData())
	}
}

// TestFilesOfAnAllocation: callers read the files that tasks write, and no other file of the node.
func TestFilesOfAnAllocation(t *testing.T) {
	m, dir := newMaster(t), t.TempDir()
	secret := filepath.Join(dir, "outside")
	if err := os.WriteFile(secret, []byte("of the node"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.order(testOrder("aaaa", 1, "process", sh(`mkdir -p sub && printf hello >sub/a.txt && ln -s sub/a.txt inside && ln -s `+secret+` outside && ln -s ../../secrets up \
		&& mkfifo pipe && printf both >$NUSA_ALLOC_DIR/b.txt && head -c 100000 /dev/zero >big && echo ready && exec sleep 3600`)))
	startProcess(t, filepath.Join(dir, "data"), m.addr)
	m.untilState("aaaa", running)
	client := nusav1.NewAllocationsClient(m.conn())
	untilOutput(t, client, "ready\n")
	list := func(path string, want string) {
		t.Helper()
		r, err := client.ListFiles(t.Context(), &nusav1.ListFilesRequest{Allocation: "aaaa", Path: path})
		var names []string
		for _, f := range r.GetEntries() {
			names = append(names, f.GetName())
		}
		if got := strings.Join(names, " "); err != nil || got != want || !r.GetFile().GetFolder() {
			t.Errorf("list %q: %q, want %q: %v", path, got, want, err)
		}
	}
	list("", "shared tasks")
	list("/", "shared tasks")
	list("tasks", "main")
	list("tasks/main", "big inside outside pipe sub up")
	list("tasks/main/sub/", "a.txt")
	list("shared", "b.txt")
	r, err := client.ListFiles(t.Context(), &nusav1.ListFilesRequest{Allocation: "aaaa", Path: "tasks/main", Limit: 2})
	if err != nil || !r.GetTruncated() || len(r.GetEntries()) != 2 {
		t.Errorf("a short list: %v: %v", r, err)
	}
	read := func(req *nusav1.ReadFileRequest) (string, error) {
		req.Allocation = "aaaa"
		stream, err := client.ReadFile(t.Context(), req)
		if err != nil {
			return "", err
		}
		var out strings.Builder
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return out.String(), nil
			}
			if err != nil {
				return out.String(), err
			}
			out.Write(m.GetData())
		}
	}
	for _, c := range []struct {
		req  *nusav1.ReadFileRequest
		want string
	}{
		{&nusav1.ReadFileRequest{Path: "tasks/main/sub/a.txt"}, "hello"},
		{&nusav1.ReadFileRequest{Path: "tasks/main/inside"}, "hello"},
		{&nusav1.ReadFileRequest{Path: "tasks/main/inside", Offset: 1, Limit: 3}, "ell"},
		{&nusav1.ReadFileRequest{Path: "tasks/main/inside", Offset: 50}, ""},
		{&nusav1.ReadFileRequest{Path: "shared/b.txt"}, "both"},
		{&nusav1.ReadFileRequest{Path: "tasks/main/big"}, strings.Repeat("\x00", 100_000)},
	} {
		if got, err := read(c.req); err != nil || got != c.want {
			t.Errorf("%v: %d bytes, want %d: %v", c.req, len(got), len(c.want), err)
		}
	}
	for path, want := range map[string]codes.Code{
		"tasks/main/outside":       codes.FailedPrecondition,
		"tasks/main/up":            codes.FailedPrecondition,
		"tasks/main/up/main":       codes.FailedPrecondition,
		"tasks/main/pipe":          codes.FailedPrecondition,
		"tasks/main":               codes.FailedPrecondition,
		"tasks":                    codes.FailedPrecondition,
		"tasks/main/../../../x":    codes.InvalidArgument,
		"../outside":               codes.InvalidArgument,
		"secrets/main":             codes.NotFound,
		"tasks/other":              codes.NotFound,
		"tasks/main/none":          codes.NotFound,
		"tasks/main/sub/a.txt/b":   codes.NotFound,
		strings.Repeat("x/", 3000): codes.InvalidArgument,
	} {
		if got, err := read(&nusav1.ReadFileRequest{Path: path}); status.Code(err) != want || got != "" {
			t.Errorf("read %.40q: %q, %v; want %v", path, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), dir) {
			t.Errorf("read %q names a path of the node: %v", path, err)
		}
	}
}
