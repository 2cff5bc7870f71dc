package job

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// DockerMinMemory and IncusMinMemory are the least memory of a container, in bytes. An
// Incus container also holds the supervisor of its command.
const (
	DockerMinMemory = 6 << 20
	IncusMinMemory  = 24 << 20
)

// dockerFields and incusFields are the names of the fields of a task's config.
// examples/docker.yaml and examples/incus.yaml explain the fields.
var (
	dockerFields = []string{"image", "pull", "entrypoint", "command", "args", "user", "dir", "labels", "network", "udp", "pids_limit", "cpu_hard_limit", "privileged"}
	incusFields  = []string{"image", "type", "command", "args", "dir", "user", "profiles", "config", "devices", "target"}
)

// checkDockerConfig validates the names of the fields, and that no lease binds the group.
// The driver validates the values.
func checkDockerConfig(c *checker, p string, t *nusav1.Task, g *nusav1.Group) {
	for _, k := range sorted(t.GetConfig().GetFields()) {
		checkConfigField(c, c.join(p, k), k, dockerFields)
	}
	if bound(g) {
		c.fail(strings.TrimSuffix(p, ".config")+".driver", "docker cannot stop a container at the end of a lease: use process, incus with a command, or leave %s out", bindingSetting(g))
	}
	checkLeastMemory(c, p, t, DockerMinMemory)
}

// checkLeastMemory refuses a memory limit that the engine would refuse on the node.
func checkLeastMemory(c *checker, p string, t *nusav1.Task, least int64) {
	if m := t.GetResources().GetMemoryBytes(); m > 0 && m < least {
		c.fail(strings.TrimSuffix(p, ".config")+".resources.memory", "%s, driver %s needs at least %s", FormatBytes(m), t.GetDriver(), FormatBytes(least))
	}
}

func checkIncusConfig(c *checker, p string, t *nusav1.Task, g *nusav1.Group) {
	fields := t.GetConfig().GetFields()
	for _, k := range sorted(fields) {
		at := c.join(p, k)
		switch {
		case !checkConfigField(c, at, k, incusFields):
		case k == "args" || k == "profiles":
			checkArgs(c, at, fields[k])
		case k == "config":
			checkTexts(c, at, fields[k])
		case k == "devices":
			checkDevices(c, at, fields[k])
		case !isText(fields[k]) || fields[k].GetStringValue() == "":
			c.fail(at, "must be text: write it in quotes")
		default:
			c.text(at, fields[k].GetStringValue(), 4096)
		}
	}
	kind, command := fields["type"].GetStringValue(), fields["command"].GetStringValue() != ""
	vm := kind == "virtual-machine"
	switch {
	case fields["image"] == nil:
		c.fail(c.join(p, "image"), "is missing: an alias, a fingerprint, or images:ALIAS")
	case fields["type"] != nil && isText(fields["type"]) && kind != "" && kind != "container" && !vm:
		c.fail(c.join(p, "type"), "must be one of container, virtual-machine, not %q", clip(kind))
	case vm && command:
		c.fail(c.join(p, "command"), "a virtual machine runs its image's own init")
	case vm && len(g.GetPorts()) > 0:
		c.fail(c.join(p, "type"), "a virtual machine has a network of its own: the group can have no ports, use devices")
	case bound(g) && !command:
		c.fail(c.join(p, "command"), "is missing: without one nothing in it stops it on lost contact (%s)", bindingSetting(g))
	case fields["command"] == nil && (fields["args"] != nil || fields["user"] != nil || fields["dir"] != nil):
		c.fail(c.join(p, "command"), "is missing: without one the image's own init runs, which takes no args, user or dir")
	}
	if command {
		checkLeastMemory(c, p, t, IncusMinMemory)
	}
}

// checkTexts validates a map whose keys the engine defines. The engine gets all values as
// text, so numbers and booleans are converted.
func checkTexts(c *checker, p string, v *structpb.Value) {
	s, ok := v.GetKind().(*structpb.Value_StructValue)
	if !ok {
		c.fail(p, "must be a mapping")
		return
	}
	for _, k := range sorted(s.StructValue.GetFields()) {
		switch x := s.StructValue.GetFields()[k].GetKind().(type) {
		case *structpb.Value_StringValue:
			c.text(configPath(c, p, k), x.StringValue, maxText)
		case *structpb.Value_BoolValue, *structpb.Value_NumberValue:
		default:
			c.fail(configPath(c, p, k), "must be text, a number, true or false")
		}
	}
}

func checkDevices(c *checker, p string, v *structpb.Value) {
	s, ok := v.GetKind().(*structpb.Value_StructValue)
	if !ok {
		c.fail(p, "must be a mapping of devices")
		return
	}
	for _, k := range sorted(s.StructValue.GetFields()) {
		d := s.StructValue.GetFields()[k]
		checkTexts(c, configPath(c, p, k), d)
		if d.GetStructValue() != nil && d.GetStructValue().GetFields()["type"] == nil {
			c.fail(c.join(configPath(c, p, k), "type"), "is missing: disk, nic, proxy, …")
		}
	}
}

// configPath returns the field path of a key that may contain dots.
func configPath(c *checker, p, k string) string {
	if c.quiet {
		return ""
	}
	return fmt.Sprintf("%s[%q]", p, k)
}
