package docker

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/job/config"
)

// defaultPids is the default bound on the processes of a container.
const defaultPids = 4096

// settings are the task's `config` for this driver. The file examples/docker.yaml explains the
// keys.
type settings struct {
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

func parse(t driver.Task) (settings, error) {
	v, err := config.Docker.Read(t.Config)
	if err != nil {
		return settings{}, err
	}
	c := settings{
		image: v.Text("image", ""), pull: v.Text("pull", "if_absent"), entrypoint: v.Texts("entrypoint"), command: v.Text("command", ""),
		args: v.Texts("args"), user: v.Text("user", ""), dir: v.Text("dir", ""), labels: v.TextMap("labels"), network: v.Text("network", "bridge"),
		udp: v.Texts("udp"), pids: v.Integer("pids_limit", defaultPids), hardCPU: v.Bool("cpu_hard_limit"), privileged: v.Bool("privileged"),
	}
	if c.network == "none" && len(t.Ports) > 0 {
		return c, errors.New("config.network: none, but the group has ports")
	}
	for i, label := range c.udp {
		if !slices.ContainsFunc(t.Ports, func(p driver.Port) bool { return p.Label == label }) {
			return c, fmt.Errorf("config.udp[%d]: the group has no port %q", i, label)
		}
	}
	return c, nil
}
