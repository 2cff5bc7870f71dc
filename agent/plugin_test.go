package agent

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/plugin"
	"github.com/nusa-scheduler/nusa/agent/driver/process"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// closedFile and pidFile are in a test plugin's folder. closedFile prevents the plugin from
// running. pidFile contains the plugin's process id.
const closedFile, pidFile = "closed", "pid"

// testPlugin is the main function of the tests' plugins. They run processes; the
// plugin "garbage" returns invalid statuses.
func testPlugin() error {
	if _, err := os.Stat(closedFile); err == nil {
		return fmt.Errorf("closed for now")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		return err
	}
	p := process.New(process.Config{Dir: plugin.Dir(), SupervisorArgv: []string{self, "supervise"}})
	defer p.Close()
	if name := os.Getenv("NUSA_PLUGIN_NAME"); name != "garbage" {
		return plugin.Serve(name, p)
	}
	return plugin.Serve("garbage", garbage{p})
}

type garbage struct{ *process.Driver }

func (g garbage) Status(ctx context.Context, id driver.ID) (driver.Status, error) {
	st, err := g.Driver.Status(ctx, id)
	st.State = 0
	return st, err
}

func withPlugin(t *testing.T, dir, server string, names ...string) Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := testConfig(t, dir, newMock(), server)
	c.Plugins = map[string]string{}
	for _, name := range names {
		c.Plugins[name] = self
	}
	return c
}

// pluginScript is a script for the process driver, which has no PATH in a plugin.
func pluginScript(text string) map[string]any {
	return map[string]any{"command": "/bin/sh", "args": []any{"-c", text}}
}

func killPlugin(t *testing.T, dir, name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "plugins", name, "data", pidFile))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// TestPluginTaskSurvivesItsPlugin: a task of a plugin survives a kill of the plugin. It
// also survives a restart of the agent during which the plugin cannot run. Each time the
// same run continues and its true end is reported.
func TestPluginTaskSurvivesItsPlugin(t *testing.T) {
	m, dir := newMaster(t), t.TempDir()
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	starts := filepath.Join(t.TempDir(), "starts")
	m.order(testOrder("aaaa", 1, "own", pluginScript("echo $$ >>"+starts+"; read x <"+gate+"; exit 5"), batch))
	stop := runAgent(t, withPlugin(t, dir, m.addr, "own"))
	m.untilState("aaaa", running)
	m.set(func() {
		for _, d := range m.hellos[0].GetInventory().GetDrivers() {
			if d.GetName() == "own" && (!d.GetHealthy() || d.GetVersion() != "1" || len(d.GetCapabilities()) == 0) {
				t.Errorf("the node shows %v", d)
			}
		}
		if n := len(m.hellos[0].GetInventory().GetDrivers()); n != 2 {
			t.Errorf("the node shows %d drivers", n)
		}
	})
	killPlugin(t, dir, "own")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(dir, "plugins", "own", "data", closedFile)
	if err := os.WriteFile(closed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.until("the session to break", func() bool { return len(m.sessions) == 0 })
	m.set(func() { m.reports = map[string]*nusav1.AllocReport{} })
	m.order(testOrder("bbbb", 2, "own", pluginScript("true"), batch))
	runAgent(t, withPlugin(t, dir, m.addr, "own"))
	if r := m.untilState("bbbb", failed); !r.GetDeclined() || !strings.Contains(r.GetMessage(), "driver own is not healthy: it does not run: it ended with exit code 1: closed for now") {
		t.Errorf("declined as %v", r)
	}
	m.untilState("aaaa", running)
	if err := os.Remove(closed); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(gate, []byte("go\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := m.untilState("aaaa", failed); r.GetTasks()["main"].GetExitCode() != 5 {
		t.Errorf("ended as %v", r)
	}
	if text, err := os.ReadFile(starts); err != nil || strings.Count(string(text), "\n") != 1 {
		t.Errorf("started as processes %q: %v", text, err)
	}
}

// TestPluginThatLies: only the plugin's own allocation fails. The message names the wrong
// field.
func TestPluginThatLies(t *testing.T) {
	m, dir := newMaster(t), t.TempDir()
	m.order(testOrder("aaaa", 1, "garbage", pluginScript("sleep 3600")))
	m.order(testOrder("bbbb", 2, "mock", nil))
	runAgent(t, withPlugin(t, dir, m.addr, "garbage"))
	const want = "plugin garbage: Status: the driver breaks its contract: state: 0 is none"
	if r := m.untilState("aaaa", failed); !strings.Contains(r.GetMessage(), want) || r.GetReason() != nusav1.Reason_REASON_UNSUPPORTED {
		t.Errorf("failed as %v", r)
	}
	m.untilState("bbbb", running)
}

// TestPluginNames: the agent refuses to start if a plugin's name is invalid in a job file
// or similar to a built-in driver's name.
func TestPluginNames(t *testing.T) {
	for name, want := range map[string]string{
		"process": "there is a driver process already",
		"reserve": "there is a driver reserve already",
		"dokcer":  "dokcer is too much like the driver docker",
		"Qemu":    `"Qemu" is not a name of a driver`,
		"qemu":    "qemu= names no executable",
	} {
		c := testConfig(t, t.TempDir(), newMock(), "127.0.0.1:1")
		c.Plugins = map[string]string{name: ""}
		if err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "--plugin: "+want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
