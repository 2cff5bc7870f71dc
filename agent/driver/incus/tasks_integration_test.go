//go:build integration

package incus

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lxc/incus/v6/shared/api"
	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/internal/freeport"
)

func output(t *testing.T, d *Driver, id driver.ID) string {
	t.Helper()
	var b strings.Builder
	must(t, d.Logs(limited(t, time.Minute), id, driver.LogOptions{Stdout: true, Follow: true}, func(c driver.LogChunk) error {
		b.Write(c.Data)
		return nil
	}))
	return b.String()
}

// TestBadInput: an error has the daemon's message and the wrong field. Other instances
// continue.
func TestBadInput(t *testing.T) {
	i := real(t)
	must(t, i.AddImage(t.Context(), "foreign", "aarch64"))
	d := newReal(t, t.TempDir())
	d.cfg.AllowPrivileged = true // with this setting the daemon refuses the task, and not the driver
	server := remotes["images"]
	remotes["images"] = fmt.Sprintf("https://127.0.0.1:%d", freeport.Reserve(t, 1)) // no server listens on this port
	t.Cleanup(func() { remotes["images"] = server })
	other := task(t, d, "other", counted())
	must(t, d.Start(limited(t, time.Minute), other))
	with := func(key string, value any) map[string]any {
		config := shell("true")
		config[key] = value
		return config
	}
	for name, c := range map[string]struct {
		config map[string]any
		memory int64
		ports  []driver.Port
		kind   error
		words  []string
	}{
		"no such image":   {config: with("image", "none"), kind: driver.ErrStart, words: []string{"config.image: none", "not found"}},
		"no image server": {config: with("image", "images:none"), kind: driver.ErrStart, words: []string{"config.image: images:none", remotes["images"]}},
		"architecture":    {config: with("image", "foreign"), kind: driver.ErrStart, words: []string{"config.image: foreign is for aarch64, this host runs"}},
		"type":            {config: map[string]any{"image": "bb", "type": "virtual-machine"}, kind: driver.ErrStart, words: []string{"config.type: image bb is of a container"}},
		"unknown key":     {config: with("nonesuch", 1), kind: driver.ErrInvalid, words: []string{"config.nonesuch: unknown field"}},
		"unknown own key": {config: with("config", map[string]any{"limits.nonesuch": "1"}), kind: driver.ErrStart, words: []string{"config.config", "Unknown configuration key: limits.nonesuch"}},
		"bad value":       {config: with("config", map[string]any{"limits.processes": "many"}), kind: driver.ErrStart, words: []string{"config.config", `integer "many"`}},
		"unknown device":  {config: with("devices", map[string]any{"x": map[string]any{"type": "nonesuch"}}), kind: driver.ErrStart, words: []string{"config.devices", "nonesuch"}},
		"no such network": {config: with("devices", map[string]any{"eth0": map[string]any{"type": "nic", "network": "none"}}), kind: driver.ErrStart, words: []string{"config.devices", "Network not found"}},
		"no such profile": {config: with("profiles", []any{"none"}), kind: driver.ErrStart, words: []string{"config.profiles", "none"}},
		"no such member":  {config: with("target", "none"), kind: driver.ErrInvalid, words: []string{"config.target", "only allowed when clustered"}},
		"little memory":   {config: shell("true"), memory: 1 << 20, kind: driver.ErrInvalid, words: []string{"resources.memory: 1048576 bytes"}},
		"no command":      {config: with("command", "nonesuch"), kind: driver.ErrStart, words: []string{"config.command", "nonesuch"}},
		"not executable":  {config: with("command", "/etc/passwd"), kind: driver.ErrStart, words: []string{"config.command", "permission denied"}},
		"no such user":    {config: with("user", "nonesuch"), kind: driver.ErrStart, words: []string{"config.user", "nonesuch"}},
		"no such folder":  {config: with("dir", "/none/such"), kind: driver.ErrStart, words: []string{"config.dir", "/none/such"}},
		"used port":       {config: shell("sleep 60"), ports: []driver.Port{{Label: "web", Host: taken(t), To: 80}}, kind: driver.ErrStart, words: []string{"ports: ", "proxy device"}},
	} {
		t.Run(name, func(t *testing.T) {
			// Each task has its own name, like in an agent. The daemon finds the instance
			// to delete by its name.
			tk := task(t, d, strings.ReplaceAll(name, " ", "-"), c.config)
			if c.memory != 0 {
				tk.Resources.MemoryBytes = c.memory
			}
			tk.Ports = c.ports
			err := d.Start(limited(t, time.Minute), tk)
			if !errors.Is(err, c.kind) {
				t.Fatalf("%v, want %v", err, c.kind)
			}
			for _, w := range c.words {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v, want it to say %q", err, w)
				}
			}
			if st, err := d.Status(t.Context(), tk.ID); err == nil && st.State != driver.Ended {
				t.Errorf("afterwards %+v", st)
			}
			must(t, d.Remove(limited(t, time.Minute), tk.ID))
			until(t, "nothing is left", func() bool { return !has(t, d, tk.ID) })
		})
	}
	end(t, other)
	if st, err := d.Wait(limited(t, time.Minute), other.ID); err != nil || st.ExitCode != 9 {
		t.Errorf("the other ended as %+v: %v", st, err)
	}
}

// taken returns a port on which a server listens.
func taken(t *testing.T) int {
	t.Helper()
	lis, err := net.Listen("tcp", "0.0.0.0:0")
	must(t, err)
	t.Cleanup(func() { lis.Close() })
	return lis.Addr().(*net.TCPAddr).Port
}

// TestNoDaemon: without a daemon the fingerprint and the error of Start name the socket.
func TestNoDaemon(t *testing.T) {
	real(t)
	socket := filepath.Join(t.TempDir(), "none")
	d, err := New(Config{Dir: t.TempDir(), Address: socket, Init: slim(t)})
	must(t, err)
	defer d.Close()
	if f := d.Fingerprint(t.Context()); f.Healthy || !strings.Contains(f.Message, socket) || !strings.Contains(f.Message, "no such file") {
		t.Errorf("%+v", f)
	}
	tk := task(t, d, "no-daemon", shell("true"))
	if err := d.Start(limited(t, time.Minute), tk); !errors.Is(err, driver.ErrStart) || !strings.Contains(err.Error(), socket) {
		t.Error(err)
	}
}

// TestVolumesAndPorts: paths are right in the container, and read-only volumes are
// read-only. Root of the container is root only in its own folders. A port of the node
// leads into the container.
func TestVolumesAndPorts(t *testing.T) {
	d := newReal(t, t.TempDir())
	data, web := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(data, "f"), []byte("from the volume\n"), 0o600))
	must(t, os.WriteFile(filepath.Join(web, "page"), []byte("a page\n"), 0o600))
	tk := task(t, d, "volumes", shell(`pwd; cat $ALLOC/data/f; echo x >$ALLOC/data/new || echo read-only; cat /www/page; echo kept >kept; id -u; exec httpd -f -p 8080 -h /www`))
	tk.Env["ALLOC"] = tk.AllocDir
	tk.Volumes = []driver.Volume{{Name: "data", Source: data, ReadOnly: true}, {Name: "web", Source: web, Target: "/www"}}
	tk.Ports = []driver.Port{{Label: "http", Host: freeport.Reserve(t, 1), To: 8080}}
	must(t, d.Start(limited(t, time.Minute), tk))
	var got []byte
	until(t, "the port answers", func() bool {
		res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/page", tk.Ports[0].Host))
		if err != nil {
			return false
		}
		defer res.Body.Close()
		got, err = io.ReadAll(res.Body)
		return err == nil
	})
	if string(got) != "a page\n" {
		t.Errorf("the port answers %q", got)
	}
	must(t, d.Stop(limited(t, time.Minute), tk.ID, 0))
	out := output(t, d, tk.ID)
	if want := tk.Dir + "\nfrom the volume\nread-only\na page\n0\n"; out != want {
		t.Errorf("it printed %q, want %q", out, want)
	}
	if kept, err := os.ReadFile(filepath.Join(tk.Dir, "kept")); string(kept) != "kept\n" {
		t.Errorf("its file has %q: %v", kept, err)
	}
}

// TestVolumesStayMountedWithTheInstance: the allowed folder stays mounted as long as the instance exists, even if its
// path changes. A read-only mount includes the mounts below it. The mount is removed with the
// instance, also after a restart of the host.
func TestVolumesStayMountedWithTheInstance(t *testing.T) {
	dir, base := t.TempDir(), t.TempDir()
	d := newReal(t, dir)
	source, below := filepath.Join(base, "a"), filepath.Join(base, "a", "below")
	must(t, os.MkdirAll(below, 0o755))
	must(t, unix.Mount("test", below, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(base, "b", "below"), unix.MNT_DETACH) })
	must(t, os.WriteFile(filepath.Join(source, "f"), []byte("allowed\n"), 0o644))
	volume := []driver.Volume{{Name: "vol", Source: source, Target: "/vol", ReadOnly: true}}
	first := task(t, d, "hold-first", shell(`cat /vol/f; echo x >/vol/new || echo read-only; echo x >/vol/below/new || echo read-only; sleep 3600`))
	second := task(t, d, "hold-second", shell("sleep 3600"))
	first.Volumes, second.Volumes = volume, volume
	must(t, d.Start(limited(t, time.Minute), first))
	must(t, d.Start(limited(t, time.Minute), second))
	must(t, os.Rename(source, filepath.Join(base, "b")))
	must(t, os.Symlink("/etc", source))
	third := task(t, d, "hold-third", shell("true"))
	third.Volumes = volume
	if err := d.Start(limited(t, time.Minute), third); !errors.Is(err, driver.ErrStart) || !strings.Contains(err.Error(), "volumes.vol: ") {
		t.Errorf("a link was put there: %v", err)
	}
	d = newReal(t, dir) // a new driver without a Close, like after a kill
	must(t, d.Update(limited(t, time.Minute), first.ID, driver.Resources{CPUMilli: 250, MemoryBytes: 96 << 20}))
	must(t, d.Stop(limited(t, time.Minute), first.ID, 0))
	if got := output(t, d, first.ID); got != "allowed\nread-only\nread-only\n" {
		t.Errorf("it printed %q", got)
	}
	var inst api.Instance
	must(t, real(t).Ask(t.Context(), http.MethodGet, instancePath(instanceName(d.owner, second.ID)), nil, &inst))
	if got := staged(d); len(got) != 1 || got[0] != second.ID {
		t.Errorf("the volumes of %v are mounted", got)
	}
	must(t, unix.Unmount(filepath.Dir(filepath.Dir(inst.Devices["nusa-volume-vol"]["source"])), unix.MNT_DETACH))
	must(t, d.Stop(limited(t, time.Minute), second.ID, 0))
	if has(t, d, second.ID) || len(staged(d)) != 0 {
		t.Errorf("after a restart of the host its instance is there: %v; volumes: %v", has(t, d, second.ID), staged(d))
	}
}

// staged returns the runs whose volumes are mounted for the daemon.
func staged(d *Driver) (out []driver.ID) {
	d.mounts.Sweep(func(id driver.ID) bool { out = append(out, id); return true })
	return out
}

// TestLimitsAreEnforced: memory is enforced, and both limits change while the
// instance runs.
func TestLimitsAreEnforced(t *testing.T) {
	d := newReal(t, t.TempDir())
	greedy := task(t, d, "greedy", shell("exec dd if=/dev/zero of=/dev/null bs=256M count=1"))
	greedy.Resources.MemoryBytes = 48 << 20
	must(t, d.Start(limited(t, time.Minute), greedy))
	if st, err := d.Wait(limited(t, time.Minute), greedy.ID); err != nil || st.ExitCode != 137 || st.Signal != 9 {
		t.Errorf("with more than its memory it ended as %+v: %v", st, err)
	}
	tk := task(t, d, "changed", counted())
	must(t, d.Start(limited(t, time.Minute), tk))
	must(t, d.Update(limited(t, time.Minute), tk.ID, driver.Resources{CPUMilli: 250, MemoryBytes: 96 << 20}))
	var inst api.Instance
	must(t, real(t).Ask(t.Context(), http.MethodGet, instancePath(instanceName(d.owner, tk.ID)), nil, &inst))
	if inst.Config["limits.memory"] != fmt.Sprint(96<<20) || inst.Config["limits.cpu.allowance"] != "25ms/100ms" {
		t.Errorf("its limits are %v", inst.Config)
	}
	if err := d.Update(limited(t, time.Minute), tk.ID, driver.Resources{MemoryBytes: 1 << 20}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("with little memory: %v", err)
	}
}

// TestInitOfTheImageRuns: the image's own init runs. An event reports its end without polling.
func TestInitOfTheImageRuns(t *testing.T) {
	d := newReal(t, t.TempDir())
	tk := task(t, d, "own-init", plain())
	must(t, d.Start(limited(t, time.Minute), tk))
	ended := make(chan driver.Status, 1)
	go func() {
		st, _ := d.Wait(t.Context(), tk.ID)
		ended <- st
	}()
	path := instancePath(instanceName(d.owner, tk.ID))
	must(t, real(t).Ask(t.Context(), http.MethodPut, path+"/state", api.InstanceStatePut{Action: "stop", Force: true, Timeout: -1}, nil))
	select {
	case st := <-ended:
		if st.State != driver.Ended || st.Cause != driver.CauseExited {
			t.Errorf("it ended as %+v", st)
		}
	case <-time.After(rereadEvery / 2):
		t.Error("no event reported the end")
	}
	if _, err := d.Exec(t.Context(), tk.ID, driver.Exec{Command: []string{"true"}}); !errors.Is(err, driver.ErrNotRunning) {
		t.Errorf("exec: %v", err)
	}
}
