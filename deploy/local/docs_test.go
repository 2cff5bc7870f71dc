//go:build integration

package local_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	"github.com/nusa-scheduler/nusa/internal/freeport"
)

// TestShellBlocksOfPages runs every block marked "sh run" of README.md and docs/
// against a `nusa dev`: page after page, README.md first, block after block.
// bash ends at the first command that fails.
func TestShellBlocksOfPages(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	env := startDev(t, filepath.Join(root, "bin", "nusa"), freeport.Reserve(t, ports), devNodes, "--agents", "2")
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, file := range append([]string{filepath.Join(root, "README.md")}, files...) {
		script := runnable(t, file, "sh run")
		if script == "" {
			continue
		}
		ran++
		t.Run(filepath.Base(file), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, "bash", "-euxo", "pipefail", "-c", script)
			cmd.Dir, cmd.Env = root, env
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	if ran < 2 {
		t.Errorf("%d pages with commands to run", ran)
	}
}

// runnable returns the blocks of a page that have a mark.
func runnable(t *testing.T, file, mark string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	inside := false
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "```"):
			inside = strings.TrimSpace(line) == "```"+mark
		case inside:
			out.WriteString(line)
		}
	}
	return out.String()
}

// TestRunbooks runs the blocks marked "sh run members" of docs/security.md against a federation of
// processes that joined with tokens, in which a job runs. Its task never restarts.
func TestRunbooks(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	j := &joined{T: t, dir: t.TempDir(), bin: filepath.Join(root, "bin", "nusa"), port: freeport.Reserve(t, ports)}
	leftover.Nothing(t, j.dir)
	j.start("g1", nil, "global", "--grpc-addr", j.addr(0), "--http-addr", "-")
	j.until("g1", "server", "list")
	j.server("s1", 10, "NUSA_JOIN_TOKEN="+j.token("--role", "server"))
	j.until("connected", "region", "list")
	agents := j.token("--role", "agent", "--uses", "2")
	j.agent("n1", []string{"NUSA_JOIN_TOKEN=" + agents}, "--gpu-root", j.gpuTree())
	j.agent("n2", []string{"NUSA_JOIN_TOKEN=" + agents})
	j.eventually(200*time.Millisecond, func() error {
		out, err := j.nusa("node", "list")
		if err != nil || strings.Count(out, "ready") != 2 {
			return fmt.Errorf("two nodes: %w\n%s", err, out)
		}
		return nil
	})
	job := filepath.Join(t.TempDir(), "sleeper.yaml")
	if err := os.WriteFile(job, []byte(sleeper), 0o600); err != nil {
		t.Fatal(err)
	}
	j.must("job", "run", job)
	j.gpus()
	before, err := j.running()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euxo", "pipefail", "-c", runnable(t, filepath.Join(root, "docs", "security.md"), "sh run members"))
	cmd.Env = append(os.Environ(), "NUSA_ADDR="+j.addr(0), "NUSA_IDENTITY="+filepath.Join(j.dir, "g1", "operator"), "NO_COLOR=1", "PATH="+filepath.Dir(j.bin)+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	j.eventually(500*time.Millisecond, func() error {
		after, err := j.running()
		if err == nil && after != before {
			err = fmt.Errorf("the tasks are\n%s, and were\n%s", after, before)
		}
		return err
	})
}

// devNodes is the number of nodes of the pages: five regions with two agents each.
const devNodes = 10

// startDev starts `nusa dev` with more arguments, waits until its nodes are ready, and returns the
// environment of its clients.
func startDev(t *testing.T, bin string, port, nodes int, args ...string) []string {
	t.Helper()
	dir := t.TempDir()
	leftover.Nothing(t, dir)
	dev := exec.Command(bin, append([]string{"dev", "--port", fmt.Sprint(port), "--docker-host", "off", "--incus", "off"}, args...)...)
	dev.Env = append(os.Environ(), "TMPDIR="+dir)
	log, err := os.Create(filepath.Join(dir, "dev.log"))
	if err != nil {
		t.Fatal(err)
	}
	dev.Stdout, dev.Stderr = log, log
	if err := dev.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- dev.Wait() }()
	t.Cleanup(func() {
		defer log.Close()
		_ = dev.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(time.Minute):
			_ = dev.Process.Kill()
			<-ended
			t.Error("nusa dev did not end within a minute")
		}
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("log of nusa dev:\n%s", text)
		}
	})
	env := append(os.Environ(), fmt.Sprintf("NUSA_ADDR=127.0.0.1:%d", port), "TMPDIR="+dir, "NO_COLOR=1",
		"PATH="+filepath.Dir(bin)+":"+os.Getenv("PATH"))
	f := &federation{t: t, port: port, dir: dir}
	f.eventually("nusa dev is ready", func(ctx context.Context) error {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("nusa dev ended: %v", err)
		default:
		}
		cmd := exec.CommandContext(ctx, bin, "node", "list", "-o", "json")
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if n := strings.Count(string(out), "NODE_STATE_READY"); n < nodes {
			return fmt.Errorf("%d of %d nodes are ready", n, nodes)
		}
		return nil
	})
	return env
}
