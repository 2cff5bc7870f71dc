package incus

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

type m = map[string]any

// TestAllowed: a setting that gives access to the host is refused, with its field and the
// flag, and is allowed with the flag. Other settings are allowed without the flag.
func TestAllowed(t *testing.T) {
	key := func(k string, v any) m { return m{"config": m{k: v}} }
	device := func(d m) m { return m{"devices": m{"x": d}} }
	machine := func(c m) m { c["type"] = typeVM; return c }
	for _, c := range []struct {
		config m
		field  string // "" = allowed
	}{
		{m{}, ""},
		{key("limits.processes", 200), ""},
		{key("limits.kernel.nofile", "100"), ""},
		{key("limits.kernel.rtprio", "99"), `config.config["limits.kernel.rtprio"]`},
		{key("limits.memory.enforce", "soft"), `config.config["limits.memory.enforce"]`},
		{key("environment.A", "b c"), ""},
		{key("environment.A", "b\nlxc.hook.pre-start=/bin/sh"), `config.config["environment.A"]`},
		{key("environment.A\nlxc.hook.pre-start", "/bin/sh"), `config.config["environment.A\nlxc.hook.pre-start"]`},
		{key("limits.cpu", "1\nlxc.x=y"), `config.config["limits.cpu"]`},
		{key("cloud-init.user-data", "#cloud-config\nusers: []\n"), ""},
		{key("user.note", "a\nb"), ""},
		{key("security.privileged", false), ""},
		{key("security.privileged", "FALSE"), ""},
		{key("security.privileged", true), `config.config["security.privileged"]`},
		{key("security.privileged", ""), `config.config["security.privileged"]`},
		{key("security.nesting", 1), `config.config["security.nesting"]`},
		{key("security.nesting", false), ""},
		{key("security.idmap.isolated", true), ""},
		{key("security.idmap.isolated", false), `config.config["security.idmap.isolated"]`},
		{key("security.idmap.base", 0), `config.config["security.idmap.base"]`},
		{key("security.syscalls.intercept.mount", true), "config.config"},
		{key("security.syscalls.deny_default", false), "config.config"},
		{key("raw.idmap", "both 0 0"), "config.config"},
		{key("raw.apparmor", "mount,"), "config.config"},
		{key("raw.qemu", "-drive file=/etc/shadow"), "config.config"},
		{key("raw.seccomp", ""), "config.config"},
		{key("linux.kernel_modules", "nbd"), "config.config"},
		{key("linux.sysctl.kernel.core_pattern", "|/x"), "config.config"},
		{key("nvidia.runtime", true), "config.config"},
		{key("security.protection.delete", true), "config.config"},
		{key("of.a.later.version", "x"), "config.config"},
		{machine(key("security.secureboot", false)), ""},
		{machine(key("agent.nic_config", true)), ""},

		{device(m{"type": "nic", "network": "incusbr0", "name": "eth0", "ipv4.address": "10.0.0.2"}), ""},
		{device(m{"type": "nic", "nictype": "physical", "parent": "eth0"}), `config.devices["x"]: `},
		{device(m{"type": "nic", "network": "incusbr0", "parent": "eth0"}), `config.devices["x"]["parent"]`},
		{device(m{"type": "nic", "network": "incusbr0", "ipv4.routes": "0.0.0.0/0"}), `config.devices["x"]["ipv4.routes"]`},
		{device(m{"type": "nic", "network": "incusbr0", "name": "a\nb"}), `config.devices["x"]["name"]`},
		{device(m{"type": "disk", "path": "/", "pool": "default", "size": "1GiB"}), ""},
		{device(m{"type": "disk", "path": "/", "source": "/"}), "the group's `volumes`"},
		{device(m{"type": "disk", "path": "/mnt", "source": "/etc"}), `config.devices["x"]: `},
		{device(m{"type": "disk", "path": "/mnt", "pool": "default", "source": "others"}), `config.devices["x"]: `},
		{device(m{"type": "disk", "path": "/", "pool": "default", "raw.mount.options": "dev"}), `config.devices["x"]["raw.mount.options"]`},
		{device(m{"type": "disk", "source": "agent:config"}), `config.devices["x"]: `},
		{machine(device(m{"type": "disk", "source": "agent:config"})), ""},
		{machine(device(m{"type": "disk", "source": "cloud-init:config"})), ""},
		{machine(device(m{"type": "disk", "source": "/dev/sda"})), `config.devices["x"]: `},
		{device(m{"type": "none"}), ""},
		{device(m{"type": "proxy", "listen": "tcp:0.0.0.0:1", "connect": "unix:/var/run/docker.sock"}), `"proxy"`},
		{device(m{"type": "unix-char", "source": "/dev/mem"}), `"unix-char"`},
		{device(m{"type": "unix-block", "source": "/dev/sda"}), `"unix-block"`},
		{device(m{"type": "unix-hotplug", "vendorid": "1"}), `"unix-hotplug"`},
		{device(m{"type": "gpu"}), `"gpu"`},
		{device(m{"type": "usb"}), `"usb"`},
		{device(m{"type": "pci", "address": "0:1"}), `"pci"`},
		{device(m{"type": "infiniband"}), `"infiniband"`},
		{device(m{"type": "tpm", "path": "/dev/tpm0"}), `"tpm"`},
		{device(m{"type": "NIC", "network": "a"}), `"NIC"`},

		{m{"profiles": []any{}}, ""},
		{m{"profiles": []any{"default", "web"}}, ""},
		{m{"profiles": []any{"default", "root"}}, "config.profiles[1]: not allowed on this node: the profile root is not one that jobs may have (--incus-profiles)"},
	} {
		dir := t.TempDir()
		task := sample()
		task.Config = c.config
		task.Config["image"] = "x"
		d, err := New(Config{Dir: dir, Address: filepath.Join(dir, "none"), Init: []string{"/bin/true"}, Profiles: []string{"web"}})
		if err != nil {
			t.Fatal(err)
		}
		admit, start := d.Admit(task), d.Start(t.Context(), task)
		d.cfg.AllowPrivileged = true
		if err := d.Admit(task); err != nil {
			t.Errorf("%v: with %s: %v", c.config, allowFlag, err)
		}
		d.Close()
		if c.field == "" {
			if admit != nil || errors.Is(start, driver.ErrNotAllowed) {
				t.Errorf("%v: %v; %v", c.config, admit, start)
			}
			continue
		}
		for _, err := range []error{admit, start} {
			if !errors.Is(err, driver.ErrNotAllowed) || !strings.Contains(err.Error(), c.field) || !strings.Contains(err.Error(), "(--incus-") {
				t.Errorf("%v: %v, want it to name %s", c.config, err, c.field)
			}
		}
		if !errors.Is(start, driver.ErrInvalid) {
			t.Errorf("%v: %v", c.config, start)
		}
		if left, err := os.ReadDir(dir); len(left) != 1 || err != nil { // only the owner file remains
			t.Errorf("%v: it left %v, %v", c.config, left, err)
		}
	}
}
