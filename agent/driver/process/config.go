package process

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// config is the task's `config` for this driver.
type config struct {
	command string   // required; looked up in the task's PATH
	args    []string // strings
	dir     string   // default: the task's folder; relative to it
	user    string   // default: the agent's
	hardCPU bool     // cpu_hard_limit: a cap instead of a share
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
			if c.hardCPU, ok = value.(bool); !ok {
				err = errors.New("must be true or false")
			}
		default:
			err = errors.New("unknown field; known are args, command, cpu_hard_limit, dir, user")
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
