package incus

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lxc/incus/v6/shared/api"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
)

// pretender responds like a daemon that has one image, and records the requests to make
// instances. It is used because machines cannot be booted everywhere.
type pretender struct {
	image  api.Image
	server api.ServerEnvironment
	query  string
	post   api.InstancesPost
	err    error
	// busy counts the changes that the pretender will still refuse. patches counts the
	// requested changes.
	busy, patches int
}

func (p *pretender) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reply := func(v any) { _ = json.NewEncoder(w).Encode(map[string]any{"type": "sync", "metadata": v}) }
	switch path := r.Method + " " + r.URL.Path; {
	case path == "GET /1.0":
		reply(api.Server{Environment: p.server})
	case path == "GET /1.0/images/aliases/debian-12":
		reply(api.ImageAliasesEntry{ImageAliasesEntryPut: api.ImageAliasesEntryPut{Target: "abc"}})
	case path == "GET /1.0/images/abc":
		reply(p.image)
	case path == "POST /1.0/instances":
		body := json.NewDecoder(r.Body)
		body.DisallowUnknownFields()
		p.query, p.err = r.URL.RawQuery, body.Decode(&p.post)
		_ = json.NewEncoder(w).Encode(map[string]any{"type": "async", "operation": "/1.0/operations/1"})
	case r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/1.0/instances/nusa-") && p.post.Name != "":
		reply(api.Instance{Name: p.post.Name, Type: typeVM, StatusCode: api.Running, InstancePut: p.post.InstancePut})
	case r.Method == http.MethodPatch:
		if p.patches++; p.patches <= p.busy {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "error", "error_code": http.StatusInternalServerError,
				"error": `Failed to create instance update operation: Instance is busy running a "start" operation`})
			return
		}
		reply(nil)
	case path == "GET /1.0/operations/1/wait":
		reply(api.Operation{StatusCode: api.Success})
	default:
		_ = json.NewEncoder(w).Encode(map[string]any{"type": "error", "error_code": http.StatusNotFound, "error": "not found"})
	}
}

// pretend returns a driver that uses a pretender.
func pretend(t *testing.T, p *pretender) *Driver {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	lis, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	// An idle connection may keep the daemon from accepting another one.
	srv := &http.Server{Handler: p, ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateIdle {
			t.Error("a connection to the daemon's socket outlives its request")
		}
	}}
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(func() { srv.Close() })
	d, err := New(Config{Dir: t.TempDir(), Address: socket, Init: []string{"/bin/true"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func machine() driver.Task {
	t := sample()
	t.Config = map[string]any{"image": "debian-12", "type": typeVM}
	return t
}

// TestMachineStart checks the requests of a virtual machine's start: the check of the
// image, the creation, and the choice of a cluster's member. Then the machine runs. The
// driver refuses operations that need a supervised command, and names them.
func TestMachineStart(t *testing.T) {
	for name, c := range map[string]struct {
		target string
		server api.ServerEnvironment
		query  string
	}{
		"alone":         {"", api.ServerEnvironment{ServerName: "here"}, ""},
		"in a cluster":  {"", api.ServerEnvironment{ServerName: "here", ServerClustered: true}, "target=here"},
		"on a member":   {"member 2", api.ServerEnvironment{ServerName: "here", ServerClustered: true}, "target=member+2"},
		"named, though": {"here", api.ServerEnvironment{}, "target=here"}, // the daemon reports the problem
	} {
		t.Run(name, func(t *testing.T) {
			p := &pretender{image: api.Image{Type: typeVM, Architecture: "x86_64"}, server: c.server}
			p.server.Architectures = []string{"x86_64", "i686"}
			d, task := pretend(t, p), machine()
			if c.target != "" {
				task.Config["target"] = c.target
			}
			if err := d.Start(t.Context(), task); err != nil {
				t.Fatal(err)
			}
			if p.err != nil || p.query != c.query || p.post.Type != api.InstanceTypeVM || !p.post.Start || p.post.Config["limits.cpu"] != "2" || p.post.Config["limits.memory"] != "536870912" || p.post.Config["raw.lxc"] != "" || p.post.Config["boot.autostart"] != "false" {
				t.Errorf("%q, %+v, %v", p.query, p.post, p.err)
			}
			if rec, err := d.read(task.ID); err != nil || rec.Supervised || rec.Started.IsZero() || rec.Instance != p.post.Name {
				t.Errorf("%+v, %v", rec, err)
			}
			if err := d.Renew(t.Context(), task.ID, lease.Deadline{At: 1}); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "config.command") {
				t.Errorf("renewed: %v", err)
			}
			p.query = "none"
			if err := d.Start(context.WithoutCancel(t.Context()), task); err != nil || p.query != "none" {
				t.Errorf("a second start asks for %q: %v", p.query, err)
			}
		})
	}
}

// TestMachineRefused: a refused machine causes no request and creates no instance.
func TestMachineRefused(t *testing.T) {
	for _, c := range []struct {
		image  api.Image
		change func(*driver.Task)
		words  string
	}{
		{api.Image{Type: typeVM, Architecture: "aarch64"}, func(*driver.Task) {}, "config.image: debian-12 is for aarch64, this host runs x86_64"},
		{api.Image{Type: typeContainer, Architecture: "x86_64"}, func(*driver.Task) {}, "config.type: image debian-12 is of a container"},
		{api.Image{}, func(x *driver.Task) { x.Config["image"] = "none" }, "config.image: none: not found"},
		{api.Image{}, func(x *driver.Task) { x.Config["command"] = "httpd" }, "config.command: a virtual machine runs its image's own init"},
		{api.Image{}, func(x *driver.Task) { x.Lease.At = 1 }, "config.command: required in a group that stops on lost contact"},
		{api.Image{}, func(x *driver.Task) { x.Ports = []driver.Port{{Label: "http", Host: 1, To: 1}} }, "ports: a virtual machine has a network of its own"},
		{api.Image{}, func(x *driver.Task) { x.Config["config"] = map[string]any{"raw.qemu": "-x"} }, `config.config["raw.qemu"]: not allowed on this node`},
		{api.Image{}, func(x *driver.Task) { x.Config["config"] = map[string]any{"limits.memory": "1GiB"} }, `config.config["limits.memory"]: comes from the task's resources`},
	} {
		p := &pretender{image: c.image, server: api.ServerEnvironment{Architectures: []string{"x86_64"}}}
		d, task := pretend(t, p), machine()
		c.change(&task)
		if err := d.Start(t.Context(), task); err == nil || !strings.Contains(err.Error(), c.words) || p.post.Name != "" {
			t.Errorf("%v, want %q; asked for %+v", err, c.words, p.post)
		}
	}
}

// TestUpdateWhileBusy: while the daemon is still starting an instance, it reports that it is
// busy, and the driver tries again. A caller that cannot wait gets the error.
func TestUpdateWhileBusy(t *testing.T) {
	for _, busy := range []int{0, 3, 1 << 30} {
		p := &pretender{image: api.Image{Type: typeVM, Architecture: "x86_64"}, busy: busy}
		p.server.Architectures = []string{"x86_64"}
		d, tk := pretend(t, p), machine()
		if err := d.Start(t.Context(), tk); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if busy == 1<<30 {
			ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		}
		err := d.Update(ctx, tk.ID, driver.Resources{MemoryBytes: 1 << 30})
		cancel()
		if busy < 1<<30 && (err != nil || p.patches != busy+1) || busy == 1<<30 && err == nil {
			t.Errorf("busy %d times: %d changes asked for: %v", busy, p.patches, err)
		}
	}
}
