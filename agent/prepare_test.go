package agent

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/process"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// End-to-end tests of a task's preparation with real processes.

func processConfig(t *testing.T, dir, server string) Config {
	t.Helper()
	c := testConfig(t, dir, nil, server)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.SupervisorArgv = []string{self, "supervise"}
	return c
}

// needsCapability skips the test if this host's processes do not have a capability.
func needsCapability(t *testing.T, capability string) {
	t.Helper()
	self, _ := os.Executable()
	d := process.New(process.Config{Dir: t.TempDir(), SupervisorArgv: []string{self, "supervise"}})
	defer d.Close()
	if f := d.Fingerprint(t.Context()); !slices.Contains(f.Capabilities, capability) || os.Geteuid() != 0 {
		t.Skipf("processes have no %s here: %s", capability, f.Message)
	}
}

func writeSecret(t *testing.T, dir, value string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "default"), 0o700), os.WriteFile(filepath.Join(dir, "default", "db"), []byte(value), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// logBuffer holds the agent's log.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// leaks returns the files below a folder that contain a value in their content or in their
// names. It skips the memory file system that holds secrets.
func leaks(t *testing.T, dir, value string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == "secrets" && strings.Contains(p, "/allocs/") {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(p)
		if bytes.Contains(text, []byte(value)) {
			out = append(out, p)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return out
}

// TestSecretStaysInMemory: the task reads its secret. The secret appears nowhere else: not
// in the environment, the command line, the task's output, or the agent's log, store or
// messages to the master. The secret survives a restart of the agent and is removed with
// the allocation.
func TestSecretStaysInMemory(t *testing.T) {
	needsCapability(t, driver.CapUser)
	const secret = "hunter2-8d1f0c"
	m, dir := newMaster(t), t.TempDir()
	writeSecret(t, filepath.Join(dir, "secrets"), secret)
	c := processConfig(t, filepath.Join(dir, "agent"), m.addr)
	logs := &logBuffer{}
	c.SecretsDir, c.Logger = filepath.Join(dir, "secrets"), slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	script := `set -e; test "$(cat $NUSA_SECRETS_DIR/db)" = "$(cat local/expected)"; stat -c '%U %a' $NUSA_SECRETS_DIR $NUSA_SECRETS_DIR/db; echo $$; exec sleep 3600`
	change := func(_ *nusav1.AllocOrder, g *nusav1.Group) {
		main := g.Tasks["main"]
		main.Secrets = []string{"db"}
		main.Config.Fields["user"] = value("nobody")
		main.Env = map[string]string{"DIR": "${NUSA_SECRETS_DIR}"}
	}
	// The expected value comes from outside the searched folders.
	script = strings.ReplaceAll(script, "$(cat local/expected)", "$(cat "+filepath.Join(dir, "expected")+")")
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "expected"), []byte(secret), 0o644), openUp(dir)); err != nil {
		t.Fatal(err)
	}
	m.order(testOrder("aaaa", 1, "process", sh(script), change))
	stop := runAgent(t, c)
	r := m.untilState("aaaa", running)
	client := nusav1.NewAllocationsClient(m.conn())
	var lines []string
	polled(t, "the task to have read it", func() bool {
		out, errs := readLogs(t, client, &nusav1.LogsRequest{Allocation: "aaaa"})
		lines = strings.Fields(out)
		if errs != "" {
			t.Fatal(errs)
		}
		return len(lines) == 5
	})
	if got := strings.Join(lines[:4], " "); got != "nobody 700 nobody 400" {
		t.Errorf("folder and file are of %s", got)
	}
	polled(t, "the shell to have become sleep", func() bool { // while the kernel runs exec, both files are empty
		text, err := os.ReadFile(filepath.Join("/proc", lines[4], "cmdline"))
		if err != nil {
			t.Fatal(err)
		}
		return bytes.HasPrefix(text, []byte("sleep"))
	})
	for _, file := range []string{"environ", "cmdline"} {
		text, err := os.ReadFile(filepath.Join("/proc", lines[4], file))
		if err != nil || bytes.Contains(text, []byte(secret)) || len(text) == 0 {
			t.Errorf("%s has the secret, or cannot be read: %v", file, err)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if found := leaks(t, c.DataDir, secret); found != nil {
		t.Errorf("it is in %v", found)
	}
	if strings.Contains(logs.String(), secret) || strings.Contains(r.String(), secret) {
		t.Error("it is in the agent's log or report")
	}
	at := filepath.Join(c.DataDir, "allocs", "aaaa", "secrets", "main", "db")
	runAgent(t, c)
	m.untilState("aaaa", running)
	if text, err := os.ReadFile(at); err != nil || string(text) != secret {
		t.Errorf("after the agent's restart it is %q: %v", text, err)
	}
	o := testOrder("aaaa", 2, "process", sh(script), change)
	o.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
	m.order(o)
	m.untilState("aaaa", stopped)
	polled(t, "it to go with the allocation", func() bool {
		_, err := os.Stat(filepath.Dir(filepath.Dir(at)))
		return errors.Is(err, fs.ErrNotExist)
	})
}

// openUp makes a test's folders accessible for every user.
func openUp(dir string) error {
	var err error
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		err = errors.Join(err, os.Chmod(dir, 0o755))
	}
	return err
}

// TestMissingPermissionDeclines: a task that needs something that the node does not have or
// does not allow is declined. The message has its own reason and names the setting to
// change.
func TestMissingPermissionDeclines(t *testing.T) {
	m, dir := newMaster(t), t.TempDir()
	c := processConfig(t, filepath.Join(dir, "agent"), m.addr)
	c.SecretsDir = filepath.Join(dir, "secrets")
	writeSecret(t, c.SecretsDir, "x")
	for i, k := range []struct {
		id     string
		change func(*nusav1.Group)
		reason nusav1.Reason
		words  string
	}{
		{"secret", func(g *nusav1.Group) { g.Tasks["main"].Secrets = []string{"db", "other"} }, nusav1.Reason_REASON_SECRET_MISSING, `task main: secrets[1]: this node has no such secret: "other"`},
		{"volume", func(g *nusav1.Group) { g.Volumes = map[string]*nusav1.Volume{"etc": {Source: "/etc"}} }, nusav1.Reason_REASON_NOT_ALLOWED, "--volumes-allow"},
		{"artifact", func(g *nusav1.Group) {
			g.Tasks["main"].Artifacts = []*nusav1.Artifact{{Source: "file:///etc/passwd", To: "x"}}
		}, nusav1.Reason_REASON_NOT_ALLOWED, "task main: artifacts[0].source: not allowed on this node"},
		{"mode", func(g *nusav1.Group) { g.Tasks["main"].Templates = []*nusav1.Template{{To: "x", Mode: "4755"}} }, nusav1.Reason_REASON_UNSUPPORTED, "templates[0].mode"},
	} {
		m.order(testOrder(k.id, uint64(i+1), "process", sh("sleep 3600"), func(_ *nusav1.AllocOrder, g *nusav1.Group) { k.change(g) }))
		if i == 0 {
			runAgent(t, c)
		}
		if r := m.untilState(k.id, failed); !r.GetDeclined() || r.GetReason() != k.reason || !strings.Contains(r.GetMessage(), k.words) {
			t.Errorf("%s: %v", k.id, r)
		}
	}
}

// TestArtifactsReachTheTask: an error names its field. A restart of the task does not fetch
// an artifact again.
func TestArtifactsReachTheTask(t *testing.T) {
	m, dir := newMaster(t), t.TempDir()
	var mu sync.Mutex
	asked := map[string]int{}
	tool := "#!/bin/sh\necho tool\n"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.URL.Path]++
		mu.Unlock()
		if r.URL.Path != "/tool" {
			http.Error(w, "gone for good", http.StatusGone)
			return
		}
		fmt.Fprint(w, tool)
	}))
	defer srv.Close()
	c := processConfig(t, dir, m.addr)
	c.ArtifactsAllow = []string{"127.0.0.1/32"}
	sum := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(tool)))
	artifact := func(path, sum string) func(*nusav1.AllocOrder, *nusav1.Group) {
		return func(_ *nusav1.AllocOrder, g *nusav1.Group) {
			main, attempts := g.Tasks["main"], int32(1)
			main.Artifacts = []*nusav1.Artifact{{Source: srv.URL + path, Checksum: sum, To: "bin/tool", Mode: "0755"}}
			main.Restart = &nusav1.Restart{Attempts: &attempts, Delay: durationMillis(1)}
		}
	}
	m.order(testOrder("good", 1, "process", sh("bin/tool; exit 1"), artifact("/tool", sum)))
	m.order(testOrder("gone", 2, "process", sh("exit 0"), artifact("/gone", sum)))
	m.order(testOrder("else", 3, "process", sh("exit 0"), artifact("/tool", "sha256:"+strings.Repeat("0", 64))))
	runAgent(t, c)
	m.untilState("good", failed)
	if out, _ := readLogs(t, nusav1.NewAllocationsClient(m.conn()), &nusav1.LogsRequest{Allocation: "good"}); out != "tool\ntool\n" {
		t.Errorf("two runs printed %q", out)
	}
	if r := m.untilState("gone", failed); r.GetDeclined() || !strings.Contains(r.GetMessage(), "artifacts[0].source: "+srv.URL+"/gone: the server answers 410 Gone: gone for good") {
		t.Errorf("%v", r)
	}
	if r := m.untilState("else", failed); r.GetReason() != nusav1.Reason_REASON_START_FAILED || !strings.Contains(r.GetMessage(), "artifacts[0].checksum: ") {
		t.Errorf("%v", r)
	}
	mu.Lock()
	defer mu.Unlock()
	if asked["/tool"] != 2 || asked["/gone"] != 2 { // /tool: one request of each allocation; /gone: one request of each run
		t.Errorf("requests %v", asked)
	}
}

// TestVolumesOfAProcess: volumes are mounted at their targets, also read-only volumes. The
// task and commands in the task see the mounts, but the host does not.
func TestVolumesOfAProcess(t *testing.T) {
	needsCapability(t, driver.CapMounts)
	m, dir := newMaster(t), t.TempDir()
	srv, target := filepath.Join(dir, "srv"), filepath.Join(dir, "target")
	if err := errors.Join(os.MkdirAll(srv, 0o777), os.Mkdir(target, 0o755), os.WriteFile(filepath.Join(srv, "in"), []byte("volume\n"), 0o644), openUp(dir), os.Chmod(srv, 0o777)); err != nil {
		t.Fatal(err)
	}
	c := processConfig(t, filepath.Join(dir, "agent"), m.addr)
	c.VolumesAllow = []string{srv}
	script := `cat ` + target + `/in "$NUSA_ALLOC_DIR/data/in"; touch ` + target + `/no 2>/dev/null || echo read-only; echo out >"$NUSA_ALLOC_DIR/data/out"; cd "$NUSA_TASK_DIR" && pwd; test -e ` + filepath.Join(dir, "agent", "agent.db") + ` || echo hidden; id -un; exec sleep 3600`
	m.order(testOrder("aaaa", 1, "process", map[string]any{"command": "sh", "args": []any{"-c", script}, "user": "nobody", "ulimits": map[string]any{"nofile": "100:200", "core": 0}},
		func(_ *nusav1.AllocOrder, g *nusav1.Group) {
			g.Volumes = map[string]*nusav1.Volume{"data": {Source: srv}, "fixed": {Source: srv, Target: target, ReadOnly: true}}
		}))
	runAgent(t, c)
	m.untilState("aaaa", running)
	client := nusav1.NewAllocationsClient(m.conn())
	want := "volume\nvolume\nread-only\n" + filepath.Join(c.DataDir, "allocs/aaaa/tasks/main") + "\nhidden\nnobody\n"
	var out, errs string
	polled(t, "its output", func() bool {
		out, errs = readLogs(t, client, &nusav1.LogsRequest{Allocation: "aaaa"})
		return strings.HasSuffix(out, "nobody\n") || errs != ""
	})
	if out != want || errs != "" {
		t.Errorf("printed %q and %q, want %q", out, errs, want)
	}
	if text, err := os.ReadFile(filepath.Join(srv, "out")); err != nil || string(text) != "out\n" {
		t.Errorf("written through the volume: %q %v", text, err)
	}
	if left, _ := os.ReadDir(target); len(left) != 0 {
		t.Errorf("the host sees %v", left)
	}
	if got := execIn(t, client, "aaaa", "sh", "-c", "cat "+target+"/in; id -un; ulimit -Sn; ulimit -Hn; ulimit -c"); got != "volume\nnobody\n100\n200\n0\n" {
		t.Errorf("a further command prints %q", got)
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	status := execIn(t, client, "aaaa", "cat", "/proc/self/status")
	if !strings.Contains(status, "Uid:\t"+nobody.Uid+"\t"+nobody.Uid) || !strings.Contains(status, "NoNewPrivs:\t1") {
		t.Errorf("a further command is %s", status)
	}
}

// execIn runs a command in a task and returns what it prints.
func execIn(t *testing.T, c nusav1.AllocationsClient, alloc string, command ...string) string {
	t.Helper()
	out, errs, code, err := execed(t, c, &nusav1.ExecRequest_Start{Allocation: alloc, Command: command}, "")
	if err != nil || code != 0 || errs != "" {
		t.Fatalf("%v: %d, %q, %v", command, code, errs, err)
	}
	return out
}

func value(v any) *structpb.Value {
	out, err := structpb.NewValue(v)
	if err != nil {
		panic(err)
	}
	return out
}

// TestProcessUserIsTheOnlyOne: an agent with --process-user lets no process run as
// another user.
func TestProcessUserIsTheOnlyOne(t *testing.T) {
	needsCapability(t, driver.CapUser)
	m, dir := newMaster(t), t.TempDir()
	c := processConfig(t, filepath.Join(dir, "agent"), m.addr)
	if err := openUp(dir); err != nil {
		t.Fatal(err)
	}
	c.ProcessUser = "nobody"
	m.order(testOrder("aaaa", 1, "process", sh("id -un; id -G; ulimit -n; echo x >file; cat conf"), batch, func(_ *nusav1.AllocOrder, g *nusav1.Group) {
		g.Tasks["main"].Config.Fields["ulimits"] = value(map[string]any{"nofile": 77})
		g.Tasks["main"].Templates = []*nusav1.Template{{To: "conf", Text: "mine\n", Mode: "0600"}}
	}))
	m.order(testOrder("bbbb", 2, "process", map[string]any{"command": "id", "user": "root"}, batch))
	runAgent(t, c)
	m.untilState("aaaa", complete)
	if out, errs := readLogs(t, nusav1.NewAllocationsClient(m.conn()), &nusav1.LogsRequest{Allocation: "aaaa"}); out != "nobody\n65534\n77\nmine\n" || errs != "" {
		t.Errorf("printed %q and %q", out, errs)
	}
	if r := m.untilState("bbbb", failed); r.GetReason() != nusav1.Reason_REASON_NOT_ALLOWED || !r.GetDeclined() || !strings.Contains(r.GetMessage(), "config.user: not allowed on this node: jobs may not run as root (--process-user, --process-users)") {
		t.Errorf("%v", r)
	}
}

// TestEndedFoldersAreBounded: the agent removes the oldest folders of ended allocations when there
// are too many.
func TestEndedFoldersAreBounded(t *testing.T) {
	m, drv, dir := newMaster(t), newMock(), t.TempDir()
	c := testConfig(t, dir, drv, m.addr)
	c.MaxRetainedFolders = 5
	runAgent(t, c)
	for i := range 10 {
		id := "alloc-" + strconv.Itoa(i)
		m.order(testOrder(id, uint64(i+1), "mock", map[string]any{"run_time": "1ms"}, batch))
		m.untilState(id, complete)
	}
	polled(t, "the oldest to go", func() bool {
		left, err := os.ReadDir(filepath.Join(dir, "allocs"))
		return err == nil && len(left) == 5 && left[0].Name() == "alloc-5"
	})
}
