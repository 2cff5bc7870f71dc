package incus

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/config"
)

// The types of an instance, as Incus names them.
const (
	typeContainer = "container"
	typeVM        = "virtual-machine"
)

// settings are the task's `config` for this driver.
type settings struct {
	image    string // required: an alias, a fingerprint or REMOTE:ALIAS
	kind     string // type: container (default) | virtual-machine
	command  string // command of a container; "" = the image's own init
	args     []string
	dir      string // working directory; default: the task's folder
	user     string
	profiles []string // nil: the daemon's default
	devices  map[string]map[string]string
	config   map[string]string
	target   string // member of a cluster
}

// supervised reports whether a supervisor is the first process of the container. The
// supervisor retains the exit code and the output, and it enforces the lease.
func (c settings) supervised() bool { return c.command != "" }

func parse(t driver.Task) (settings, error) {
	v, err := config.Incus.Read(t.Config)
	if err != nil {
		return settings{}, err
	}
	c := settings{
		image: v.Text("image", ""), kind: v.Text("type", typeContainer), command: v.Text("command", ""), args: v.Texts("args"), dir: v.Text("dir", t.Dir),
		user: v.Text("user", ""), profiles: v.Texts("profiles"), config: v.TextMap("config"), target: v.Text("target", ""),
	}
	if !path.IsAbs(c.dir) {
		c.dir = path.Join(t.Dir, c.dir)
	}
	if v.Has("devices") {
		c.devices = map[string]map[string]string{}
		devices := v.Map("devices")
		for name := range devices {
			c.devices[name] = devices.TextMap(name)
		}
	}
	return c, c.check(t, v)
}

// minMemory is the least memory of a supervised container, in bytes. With less memory the
// supervisor itself would be killed.
const minMemory = job.IncusMinMemory

func (c *settings) check(t driver.Task, v config.Values) error {
	switch {
	case c.command == "" && len(c.args) > 0:
		return errors.New("config.args: without config.command the image's own init runs, which takes no arguments")
	case c.command == "" && c.user != "":
		return errors.New("config.user: without config.command the image's own init runs")
	case c.command != "" && c.kind == typeVM:
		return errors.New("config.command: a virtual machine runs its image's own init")
	case !c.supervised() && t.Lease.At != 0:
		return errors.New("config.command: required in a group that stops on lost contact: only a supervised command ends with its lease")
	case c.kind == typeVM && len(t.Ports) > 0:
		return errors.New("ports: a virtual machine has a network of its own: use config.devices")
	case c.supervised() && t.Resources.MemoryBytes > 0 && t.Resources.MemoryBytes < minMemory:
		return fmt.Errorf("resources.memory: %d bytes, a container needs at least %d MiB", t.Resources.MemoryBytes, minMemory>>20)
	}
	for _, v := range t.Volumes {
		if strings.ContainsFunc(v.Target, unicode.IsControl) { // the engine writes the target into a line of a file
			return fmt.Errorf("volumes.%s.target: %q has a control character", v.Name, v.Target)
		}
	}
	if at, twice := config.IncusLimits(v, t.Resources.MemoryBytes > 0, t.Resources.CPUMilli > 0); twice {
		return errors.New("config" + at + ": " + config.LimitTwice)
	}
	return nil
}
