package incus

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/job"
)

// The types of an instance, as Incus names them.
const (
	typeContainer = "container"
	typeVM        = "virtual-machine"
)

// config is the task's `config` for this driver.
type config struct {
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
func (c config) supervised() bool { return c.command != "" }

// fields are the known keys of the configuration, for messages.
var fields = []string{"args", "command", "config", "devices", "dir", "image", "profiles", "target", "type", "user"}

func parse(t driver.Task) (config, error) {
	c := config{kind: typeContainer, dir: t.Dir}
	for _, key := range slices.Sorted(maps.Keys(t.Config)) {
		if err := c.set(key, t.Config[key], t.Dir); err != nil {
			return c, fmt.Errorf("config.%s: %w", key, err)
		}
	}
	return c, c.check(t)
}

func (c *config) set(key string, value any, taskDir string) (err error) {
	switch key {
	case "image":
		c.image, err = text(value)
	case "type":
		c.kind, err = text(value)
		if err == nil && c.kind != typeContainer && c.kind != typeVM {
			err = fmt.Errorf("%q is neither %s nor %s", c.kind, typeContainer, typeVM)
		}
	case "command":
		c.command, err = text(value)
	case "args":
		c.args, err = driver.ConfigTexts(value)
	case "dir":
		c.dir, err = text(value)
		if !path.IsAbs(c.dir) {
			c.dir = path.Join(taskDir, c.dir)
		}
	case "user":
		c.user, err = text(value)
	case "profiles":
		c.profiles, err = driver.ConfigTexts(value)
	case "target":
		c.target, err = text(value)
	case "config":
		c.config, err = textMap(value)
		if err == nil {
			err = ownKeys(c.config)
		}
	case "devices":
		c.devices, err = devices(value)
	default:
		err = fmt.Errorf("unknown field; known are %s", strings.Join(fields, ", "))
	}
	return err
}

// ownKeys refuses keys that the driver sets itself.
func ownKeys(config map[string]string) error {
	for _, k := range slices.Sorted(maps.Keys(config)) {
		if k == "boot.autostart" || k == "raw.lxc" || strings.HasPrefix(k, keyPrefix) || strings.HasPrefix(k, "volatile.") {
			return fmt.Errorf("[%q]: is set only by the driver", k)
		}
	}
	return nil
}

// minMemory is the least memory of a supervised container, in bytes. With less memory the
// supervisor itself would be killed.
const minMemory = job.IncusMinMemory

func (c *config) check(t driver.Task) error {
	switch {
	case c.image == "":
		return errors.New("config.image: required")
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
	for _, limit := range []string{"limits.memory", "limits.cpu.allowance"} {
		if _, set := c.config[limit]; set && (limit == "limits.memory" && t.Resources.MemoryBytes > 0 || limit == "limits.cpu.allowance" && t.Resources.CPUMilli > 0) {
			return fmt.Errorf("config.config[%q]: comes from the task's resources", limit)
		}
	}
	return nil
}

var deviceName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)

func devices(v any) (map[string]map[string]string, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("must be a map of devices")
	}
	out := map[string]map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !deviceName.MatchString(name) || strings.HasPrefix(name, devicePrefix) {
			return nil, fmt.Errorf("[%q]: not a name for a device (%s… are the driver's own)", name, devicePrefix)
		}
		d, err := textMap(m[name])
		if err != nil {
			return nil, fmt.Errorf("[%q]%w", name, err)
		}
		if d["type"] == "" {
			return nil, fmt.Errorf("[%q].type: required", name)
		}
		out[name] = d
	}
	return out, nil
}

// text reads a string that is not empty.
func text(v any) (string, error) {
	s, err := driver.ConfigText(v)
	if err == nil && s == "" {
		err = errors.New("must be a text")
	}
	return s, err
}

// textMap reads a map of strings. The engine knows only strings, so textMap converts
// numbers and booleans.
func textMap(v any) (map[string]string, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New(": must be a map of texts")
	}
	out := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch x := m[k].(type) {
		case string:
			out[k] = x
		case bool, float64, int, int64:
			out[k] = fmt.Sprint(x)
		default:
			return nil, fmt.Errorf("[%q]: must be a text", k)
		}
	}
	return out, nil
}
