package docker

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// defaultPids is the default bound on the processes of a container.
const defaultPids = 4096

// config is the task's `config` for this driver. The file examples/docker.yaml explains the
// keys.
type config struct {
	image      string // required
	pull       string // if_absent | always | never
	entrypoint []string
	command    string
	args       []string
	user       string
	dir        string
	labels     map[string]string
	network    string   // bridge | host | none
	udp        []string // labels of ports that are also mapped for UDP
	pids       int64
	hardCPU    bool
	privileged bool
}

func parse(t driver.Task) (config, error) {
	c := config{pull: "if_absent", network: "bridge", pids: defaultPids}
	into := map[string]func(any) error{
		"args":           func(v any) (err error) { c.args, err = driver.ConfigTexts(v); return },
		"command":        func(v any) (err error) { c.command, err = driver.ConfigText(v); return },
		"cpu_hard_limit": func(v any) (err error) { c.hardCPU, err = flag(v); return },
		"dir":            func(v any) (err error) { c.dir, err = absolute(v); return },
		"entrypoint":     func(v any) (err error) { c.entrypoint, err = driver.ConfigTexts(v); return },
		"image":          func(v any) (err error) { c.image, err = driver.ConfigText(v); return },
		"labels":         func(v any) (err error) { c.labels, err = labels(v); return },
		"network":        func(v any) (err error) { c.network, err = oneOf(v, "bridge", "host", "none"); return },
		"pids_limit":     func(v any) (err error) { c.pids, err = count(v); return },
		"privileged":     func(v any) (err error) { c.privileged, err = flag(v); return },
		"pull":           func(v any) (err error) { c.pull, err = oneOf(v, "if_absent", "always", "never"); return },
		"udp":            func(v any) (err error) { c.udp, err = driver.ConfigTexts(v); return },
		"user":           func(v any) (err error) { c.user, err = driver.ConfigText(v); return },
	}
	for _, key := range slices.Sorted(maps.Keys(t.Config)) {
		read, ok := into[key]
		if !ok {
			return c, fmt.Errorf("config.%s: unknown field; known are %s", key, strings.Join(slices.Sorted(maps.Keys(into)), ", "))
		}
		if err := read(t.Config[key]); err != nil {
			return c, fmt.Errorf("config.%s: %w", key, err)
		}
	}
	if c.image == "" {
		return c, errors.New("config.image: required")
	}
	if c.network == "none" && len(t.Ports) > 0 {
		return c, errors.New("config.network: none, but the group has ports")
	}
	for _, label := range c.udp {
		if !slices.ContainsFunc(t.Ports, func(p driver.Port) bool { return p.Label == label }) {
			return c, fmt.Errorf("config.udp: the group has no port %q", label)
		}
	}
	return c, nil
}

func oneOf(v any, known ...string) (string, error) {
	s, _ := v.(string)
	if !slices.Contains(known, s) {
		return "", fmt.Errorf("must be one of %s", strings.Join(known, ", "))
	}
	return s, nil
}

func flag(v any) (bool, error) {
	b, ok := v.(bool)
	if !ok {
		return false, errors.New("must be true or false")
	}
	return b, nil
}

func count(v any) (int64, error) {
	n, ok := v.(float64)
	if !ok || n < 1 || n > 1<<22 || n != float64(int64(n)) {
		return 0, errors.New("must be a whole number of 1 to 4194304")
	}
	return int64(n), nil
}

func absolute(v any) (string, error) {
	s, err := driver.ConfigText(v)
	if err == nil && !strings.HasPrefix(s, "/") {
		err = errors.New("must be an absolute path inside the container")
	}
	return s, err
}

func labels(v any) (map[string]string, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("must be a map of texts")
	}
	out := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if strings.HasPrefix(k, labelPrefix) {
			return nil, fmt.Errorf("%s: labels that begin with %s are Nusa's own", k, labelPrefix)
		}
		s, err := driver.ConfigText(m[k])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k, err)
		}
		out[k] = s
	}
	return out, nil
}
