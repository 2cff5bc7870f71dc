package process

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/supervise"
	"github.com/nusa-scheduler/nusa/job"
)

// config is the task's `config` for this driver.
type config struct {
	command string   // required; searched in the task's PATH
	args    []string // strings
	dir     string   // relative to the task's folder; default: that folder
	user    string   // default: the agent's user
	hardCPU bool     // cpu_hard_limit: CPUMilli is a hard limit and not a share
	ulimits map[string]supervise.Ulimit
}

func parse(t driver.Task) (config, error) {
	c := config{dir: t.Dir}
	for _, key := range slices.Sorted(maps.Keys(t.Config)) {
		value := t.Config[key]
		var err error
		switch key {
		case "command":
			c.command, err = driver.ConfigText(value)
		case "args":
			c.args, err = driver.ConfigTexts(value)
		case "user":
			c.user, err = driver.ConfigText(value)
		case "dir":
			c.dir, err = driver.ConfigText(value)
			if !filepath.IsAbs(c.dir) {
				c.dir = filepath.Join(t.Dir, c.dir)
			}
		case "cpu_hard_limit":
			var ok bool
			c.hardCPU, ok = value.(bool)
			if !ok {
				err = errors.New("must be true or false")
			}
		case "ulimits":
			c.ulimits, err = ulimits(value)
		default:
			err = errors.New("unknown field; known are args, command, cpu_hard_limit, dir, ulimits, user")
		}
		if err != nil {
			return c, fmt.Errorf("config.%s: %w", key, err)
		}
	}
	if c.command == "" {
		return c, errors.New("config.command: required")
	}
	return c, nil
}

// ulimits parses a map from the name of a limit to its value (job.ParseUlimit).
func ulimits(value any) (map[string]supervise.Ulimit, error) {
	m, ok := value.(map[string]any)
	if !ok {
		return nil, errors.New("must be a map such as {nofile: 4096}")
	}
	out := map[string]supervise.Ulimit{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(job.Ulimits, name) {
			return nil, fmt.Errorf("%s: unknown limit; known are %s", name, strings.Join(job.Ulimits, ", "))
		}
		soft, hard, err := job.ParseUlimit(m[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out[name] = supervise.Ulimit{Soft: soft, Hard: hard}
	}
	return out, nil
}
