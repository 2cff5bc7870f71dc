package process

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

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
			c.command, err = text(value)
		case "args":
			c.args, err = texts(value)
		case "user":
			c.user, err = text(value)
		case "dir":
			c.dir, err = text(value)
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

func text(v any) (string, error) {
	s, ok := v.(string)
	if !ok {
		return "", errors.New("must be a text")
	}
	if strings.ContainsRune(s, 0) {
		return "", errors.New("must not contain a zero byte")
	}
	return s, nil
}

func texts(v any) ([]string, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, errors.New("must be a list of texts")
	}
	var out []string
	for i, item := range list {
		s, err := text(item)
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		out = append(out, s)
	}
	return out, nil
}
