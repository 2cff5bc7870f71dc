package job

import (
	"net/url"
	"strings"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxFailures bounds `failures` of a health check.
const maxFailures = 100

// checkHealth validates a health check: its fields, and whether the driver can run it.
func checkHealth(c *checker, p string, t *nusav1.Task, g *nusav1.Group, kind nusav1.JobType) {
	k := t.GetCheck()
	if k == nil {
		return
	}
	if kind == nusav1.JobType_JOB_TYPE_BATCH {
		c.fail(p, "is for services: the result of a batch job is its exit code")
	}
	switch {
	case k.GetHttp() != nil:
		at := c.under(p, ".http.path")
		path := k.GetHttp().GetPath()
		switch u, err := url.Parse(path); {
		case path != "" && !strings.HasPrefix(path, "/"):
			c.fail(at, "%q does not start with /", clip(path))
		case err != nil || u.Host != "" || u.Fragment != "" || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == 0x7f }):
			c.fail(at, "%q is not a path with an optional query", clip(path))
		}
		c.text(at, k.GetHttp().GetPath(), 1024)
		checkReachable(c, c.under(p, ".http.port"), k.GetHttp().GetPort(), t, g)
	case k.GetTcp() != nil:
		checkReachable(c, c.under(p, ".tcp.port"), k.GetTcp().GetPort(), t, g)
	case k.GetCommand() != nil:
		at := c.join(p, "command")
		words := k.GetCommand().GetCommand()
		if len(words) == 0 || words[0] == "" {
			c.fail(at, "is empty")
		}
		c.count(at, len(words), maxArgs, "arguments")
		for _, w := range words {
			c.argument(at, w, 0)
		}
		if t.GetDriver() == "incus" && t.GetConfig().GetFields()["command"].GetStringValue() == "" {
			c.fail(at, "can be run only in a container with config.command: check a port instead")
		}
	default:
		c.fail(p, "has no kind: one of http, tcp, command")
	}
	c.duration(c.join(p, "interval"), k.GetInterval(), time.Second, 24*time.Hour)
	c.duration(c.join(p, "timeout"), k.GetTimeout(), time.Millisecond, time.Hour)
	c.duration(c.join(p, "healthy_deadline"), k.GetHealthyDeadline(), time.Second, 24*time.Hour)
	if n := k.GetFailures(); n != 0 {
		c.number(c.join(p, "failures"), n, 1, maxFailures)
	}
}

// checkReachable refuses a health check of a port at which the agent cannot reach the task
// because of the network settings of the driver.
func checkReachable(c *checker, at, label string, t *nusav1.Task, g *nusav1.Group) {
	port := g.GetPorts()[label]
	if port == nil {
		c.fail(at, "the group has no port %q%s", clip(label), didYouMean(label, sorted(g.GetPorts())))
		return
	}
	config := t.GetConfig().GetFields()
	network, kind := config["network"].GetStringValue(), config["type"].GetStringValue()
	moved := port.GetTo() != 0 && port.GetTo() != port.GetStatic()
	switch {
	case t.GetDriver() == "docker" && network == "none":
		c.fail(at, "cannot be reached with config.network: none")
	case t.GetDriver() == "docker" && network == "host" && moved:
		c.fail(at, "cannot be reached at the port's to, %d, with config.network: host: leave to out and listen on $NUSA_PORT_%s", port.GetTo(), label)
	case t.GetDriver() == "incus" && kind == "virtual-machine":
		c.fail(at, "cannot be reached in a virtual machine, which has a network of its own")
	}
}
