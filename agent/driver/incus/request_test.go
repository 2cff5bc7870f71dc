package incus

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

var update = os.Getenv("UPDATE") != ""

func sample() driver.Task {
	return driver.Task{
		ID:  driver.ID{Alloc: "0f0e0d0c-0000-4000-8000-000000000001", Task: "web_1", Run: 2},
		Env: map[string]string{"NUSA_NODE": "node-1"},
		Dir: "/d/allocs/a/tasks/web_1", AllocDir: "/d/allocs/a/shared",
		Resources: driver.Resources{CPUMilli: 1500, MemoryBytes: 512 << 20},
	}
}

// TestRequest compares whole requests with reviewed requests, in the types of Incus' own
// API. A virtual machine cannot be booted everywhere.
func TestRequest(t *testing.T) {
	container, machine := sample(), sample()
	container.Config = map[string]any{
		"image": "images:alpine/3.22", "command": "httpd", "args": []any{"-f"}, "profiles": []any{"default", "web"},
		"config":  map[string]any{"limits.processes": 100.0, "security.nesting": false},
		"devices": map[string]any{"eth0": map[string]any{"type": "nic", "network": "br0"}},
	}
	container.Ports = []driver.Port{{Label: "http", Host: 20001, To: 8080}}
	container.Volumes = []driver.Volume{{Name: "data", Source: "/srv/data", ReadOnly: true}, {Name: "etc", Source: "/srv/etc", Target: "/etc/app"}}
	machine.Config = map[string]any{"image": "debian-12", "type": "virtual-machine", "target": "member-2",
		"config":  map[string]any{"security.secureboot": false, "cloud-init.user-data": "#cloud-config\nhostname: web\n"},
		"devices": map[string]any{"agent": map[string]any{"type": "disk", "source": "agent:config"}, "root": map[string]any{"type": "disk", "path": "/", "pool": "default", "size": "20GiB"}}}
	machine.Volumes, machine.SecretsDir = container.Volumes, "/d/allocs/a/secrets/web_1"
	for name, task := range map[string]driver.Task{"container": container, "virtual-machine": machine} {
		c, err := parse(task)
		if err := errors.Join(err, c.allowed(Config{Profiles: []string{"web"}})); err != nil {
			t.Fatal(err)
		}
		got, err := json.MarshalIndent(request("owner-1", task, c, "/d/incus/a/web_1.2/box", []string{"/usr/bin/nusa", "supervise"}), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", name+".json")
		if update {
			if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, append(got, '\n'), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got)+"\n" != string(want) {
			t.Errorf("%s: the request is now\n%s", name, got)
		}
	}
}

// TestConfig: every mistake names its field.
func TestConfig(t *testing.T) {
	for field, config := range map[string]map[string]any{
		"config.image: is missing":    {},
		"config.imgae: unknown field": {"imgae": "x"},
		"config.image: must be text":  {"image": 1.0},
		"config.type: must be one of container, virtual-machine, not \"jail\"": {"image": "x", "type": "jail"},
		"config.args[0]: must be text":                                         {"image": "x", "command": "y", "args": []any{1.0}},
		"config.args: without config.command":                                  {"image": "x", "args": []any{"a"}},
		"config.user: without config.command":                                  {"image": "x", "user": "a"},
		"config.command: a virtual machine":                                    {"image": "x", "type": "virtual-machine", "command": "y"},
		`config.config["boot.autostart"]: is set only by`:                      {"image": "x", "config": map[string]any{"boot.autostart": true}},
		`config.config["user.nusa.run"]: is set only by`:                       {"image": "x", "config": map[string]any{"user.nusa.run": "1"}},
		`config.config["raw.lxc"]: is set only by`:                             {"image": "x", "config": map[string]any{"raw.lxc": "a"}},
		`config.config["limits.memory"]: comes from`:                           {"image": "x", "config": map[string]any{"limits.memory": "1GiB"}},
		`config.devices["nusa-x"]: not a name`:                                 {"image": "x", "devices": map[string]any{"nusa-x": map[string]any{"type": "disk"}}},
		`config.devices["eth0"].type: is missing`:                              {"image": "x", "devices": map[string]any{"eth0": map[string]any{}}},
		"config.devices: must be a map":                                        {"image": "x", "devices": "eth0"},
		"config.profiles: must be a list of text":                              {"image": "x", "profiles": "default"},
	} {
		task := sample()
		task.Config = config
		if _, err := parse(task); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v: %v, want %q", config, err, field)
		}
	}
	for field, change := range map[string]func(*driver.Task){
		"config.command: required in a group": func(t *driver.Task) { t.Lease.At = time.Hour },
		"resources.memory: 1024 bytes": func(t *driver.Task) {
			t.Config["command"], t.Resources.MemoryBytes = "x", 1024
		},
		"ports: a virtual machine": func(t *driver.Task) {
			t.Config["type"], t.Ports = "virtual-machine", []driver.Port{{Label: "a"}}
		},
	} {
		task := sample()
		task.Config = map[string]any{"image": "x"}
		change(&task)
		if _, err := parse(task); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v, want %q", err, field)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		kind string
		r    driver.Resources
		want map[string]string
	}{
		{typeContainer, driver.Resources{}, map[string]string{}},
		{typeContainer, driver.Resources{CPUMilli: 2500, MemoryBytes: 1 << 20}, map[string]string{"limits.cpu.allowance": "250ms/100ms", "limits.memory": "1048576"}},
		{typeContainer, driver.Resources{CPUMilli: 5}, map[string]string{"limits.cpu.allowance": "5ms/1000ms"}},
		{typeVM, driver.Resources{CPUMilli: 2500}, map[string]string{"limits.cpu": "3"}},
		{typeVM, driver.Resources{CPUMilli: 1000}, map[string]string{"limits.cpu": "1"}},
	} {
		if got := limits(c.kind, c.r); !maps.Equal(got, c.want) {
			t.Errorf("%s %+v: %v, want %v", c.kind, c.r, got, c.want)
		}
	}
}

// TestInstanceName: a name is valid for Incus, and each run has a different name.
func TestInstanceName(t *testing.T) {
	valid := regexp.MustCompile(`^[a-zA-Z]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])$`)
	var names []string
	for _, owner := range []string{"a", "b"} {
		for _, alloc := range []string{"0f0e0d0c-0000-4000-8000-000000000001", "0f0e0d0c-0000-4000-8000-000000000002"} {
			for _, task := range []string{"web", "web_1", "web.1", strings.Repeat("long", 16)} {
				name := instanceName(owner, driver.ID{Alloc: alloc, Task: task, Run: 1000})
				if !valid.MatchString(name) || slices.Contains(names, name) {
					t.Errorf("%s: not valid, or given twice", name)
				}
				names = append(names, name)
			}
		}
	}
}

// TestPath: a command without a slash is found in an image without a PATH. The
// task's own PATH has priority.
func TestPath(t *testing.T) {
	task := sample()
	for path, want := range map[string]string{"": "PATH=" + defaultPath, "/opt/bin": "PATH=/opt/bin"} {
		delete(task.Env, "PATH")
		if path != "" {
			task.Env["PATH"] = path
		}
		got := slices.DeleteFunc(spec(task, settings{command: "sh"}).Env, func(kv string) bool { return !strings.HasPrefix(kv, "PATH=") })
		if !slices.Equal(got, []string{want}) {
			t.Errorf("PATH %q: %q, want %q", path, got, want)
		}
	}
}

// TestMountPointsStayInside: root of the container is root in the task's folders, so it may
// have left links there.
func TestMountPointsStayInside(t *testing.T) {
	base := t.TempDir()
	task := driver.Task{Dir: filepath.Join(base, "task"), AllocDir: filepath.Join(base, "shared")}
	file, outside := filepath.Join(base, "file"), filepath.Join(base, "outside")
	if err := errors.Join(os.Mkdir(task.Dir, 0o700), os.Mkdir(task.AllocDir, 0o700), os.Mkdir(outside, 0o700), os.WriteFile(file, nil, 0o600),
		os.Symlink(outside+"/made", filepath.Join(task.AllocDir, "link")), os.Symlink(outside, filepath.Join(task.Dir, "dir"))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		volume driver.Volume
		made   string // "" = refused
	}{
		{driver.Volume{Name: "a", Source: file}, task.AllocDir + "/a"},
		{driver.Volume{Name: "b", Source: base}, task.AllocDir + "/b"},
		{driver.Volume{Name: "c", Source: base, Target: task.Dir + "/x/y"}, task.Dir + "/x/y"},
		{driver.Volume{Name: "link", Source: file}, ""},
		{driver.Volume{Name: "d", Source: base, Target: task.Dir + "/dir/z"}, ""},
	} {
		task.Volumes = []driver.Volume{c.volume}
		err := mountPoints(task)
		if (err == nil) != (c.made != "") {
			t.Errorf("%+v: %v", c.volume, err)
		}
		if _, err := os.Stat(c.made); c.made != "" && err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(outside); len(left) != 0 || err != nil {
		t.Errorf("made outside: %v %v", left, err)
	}
}
