package process

import (
	"path/filepath"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/supervise"
	"github.com/nusa-scheduler/nusa/job/config"
)

// settings are the task's `config` for this driver.
type settings struct {
	command string   // required; searched in the task's PATH
	args    []string // strings
	dir     string   // relative to the task's folder; default: that folder
	user    string   // default: the agent's user
	hardCPU bool     // cpu_hard_limit: CPUMilli is a hard limit and not a share
	ulimits map[string]supervise.Ulimit
}

func parse(t driver.Task) (settings, error) {
	v, err := config.Process.Read(t.Config)
	if err != nil {
		return settings{}, err
	}
	c := settings{
		command: v.Text("command", ""), args: v.Texts("args"), dir: v.Text("dir", t.Dir), user: v.Text("user", ""),
		hardCPU: v.Bool("cpu_hard_limit"), ulimits: map[string]supervise.Ulimit{},
	}
	if !filepath.IsAbs(c.dir) {
		c.dir = filepath.Join(t.Dir, c.dir)
	}
	for name, limit := range v.Map("ulimits") {
		soft, hard, err := config.ParseUlimit(limit)
		if err != nil {
			return c, err
		}
		c.ulimits[name] = supervise.Ulimit{Soft: soft, Hard: hard}
	}
	if len(c.ulimits) == 0 {
		c.ulimits = nil
	}
	return c, nil
}
