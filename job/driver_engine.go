package job

import (
	"fmt"
	"strings"

	"github.com/nusa-scheduler/nusa/job/config"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// DockerMinMemory and IncusMinMemory are the least memory of a container, in bytes. An
// Incus container also holds the supervisor of its command.
const (
	DockerMinMemory = 6 << 20
	IncusMinMemory  = 24 << 20
)

// checkDockerConfig validates what the config, the ports and the leases of a group mean together.
func checkDockerConfig(c *checker, p string, t *nusav1.Task, g *nusav1.Group) {
	fields := t.GetConfig().GetFields()
	if fields["network"].GetStringValue() == "none" && len(g.GetPorts()) > 0 {
		c.fail(c.join(p, "network"), "none, but the group has ports")
	}
	for i, v := range fields["udp"].GetListValue().GetValues() {
		label := v.GetStringValue()
		if _, has := g.GetPorts()[label]; !has && !strings.Contains(label, "${") {
			c.fail(c.under(p, fmt.Sprintf(".udp[%d]", i)), "the group has no port %q%s", clip(label), didYouMean(label, sorted(g.GetPorts())))
		}
	}
	if bound(g) {
		c.fail(ofTask(p)+".driver", "docker cannot stop a container at the end of a lease: use process, incus with a command, or leave %s out", bindingSetting(g))
	}
	checkLeastMemory(c, p, t, DockerMinMemory)
}

// checkLeastMemory refuses a memory limit that the engine would refuse on the node.
func checkLeastMemory(c *checker, p string, t *nusav1.Task, least int64) {
	if m := t.GetResources().GetMemoryBytes(); m > 0 && m < least {
		c.fail(ofTask(p)+".resources.memory", "%s, driver %s needs at least %s", FormatBytes(m), t.GetDriver(), FormatBytes(least))
	}
}

func checkIncusConfig(c *checker, p string, t *nusav1.Task, g *nusav1.Group) {
	fields := t.GetConfig().GetFields()
	kind, command := fields["type"].GetStringValue(), fields["command"].GetStringValue() != ""
	vm := kind == "virtual-machine"
	switch {
	case vm && command:
		c.fail(c.join(p, "command"), "a virtual machine runs its image's own init")
	case vm && len(g.GetPorts()) > 0:
		c.fail(c.join(p, "type"), "a virtual machine has a network of its own: the group can have no ports, use devices")
	case bound(g) && !command:
		c.fail(c.join(p, "command"), "is missing: without one nothing in it stops it on lost contact (%s)", bindingSetting(g))
	case fields["command"] == nil && (fields["args"] != nil || fields["user"] != nil || fields["dir"] != nil):
		c.fail(c.join(p, "command"), "is missing: without one the image's own init runs, which takes no args, user or dir")
	}
	if at, twice := config.IncusLimits(t.GetConfig().AsMap(), t.GetResources().GetMemoryBytes() > 0, t.GetResources().GetCpuMilli() > 0); twice {
		c.fail(c.under(p, at), config.LimitTwice)
	}
	if command {
		checkLeastMemory(c, p, t, IncusMinMemory)
	}
}
