package incus

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lxc/incus/v6/shared/api"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/supervise"
	"github.com/nusa-scheduler/nusa/job/config"
)

// The keys that mark an instance as one run of this driver.
const (
	keyPrefix = config.IncusKeyPrefix
	keyOwner  = keyPrefix + "owner" // the id of the data directory
	keyAlloc  = keyPrefix + "alloc"
	keyTask   = keyPrefix + "task"
	keyRun    = keyPrefix + "run"
	keyNode   = keyPrefix + "node" // name of the node, for people
)

// devicePrefix is the prefix of the devices that the driver adds.
const devicePrefix = config.IncusDevicePrefix

// The paths of the supervisor and of the run's folder in a container.
const (
	initPath = "/.nusa/init"
	runPath  = "/.nusa/run"
)

// remotes maps the prefix of an image's name to the address of an image server.
var remotes = map[string]string{"images": "https://images.linuxcontainers.org"}

// instanceName returns the name of a run's instance. The name is valid for Incus (at most
// 63 letters, digits and hyphens) and unique among the agents of a cluster.
func instanceName(owner string, id driver.ID) string {
	sum := sha256.Sum256([]byte(owner + "/" + id.String()))
	task := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, id.Task)
	return fmt.Sprintf("nusa-%.8s-%.20s-%d-%s", id.Alloc, task, id.Run, hex.EncodeToString(sum[:4]))
}

// ours returns the run that an instance's keys name. It returns false if the instance does
// not belong to this driver.
func ours(owner string, inst api.Instance) (driver.ID, bool) {
	run, err := strconv.Atoi(inst.Config[keyRun])
	id := driver.ID{Alloc: inst.Config[keyAlloc], Task: inst.Config[keyTask], Run: run}
	return id, err == nil && inst.Config[keyOwner] == owner && inst.Name == instanceName(owner, id)
}

// source returns where the daemon gets an image.
func source(image string) api.InstanceSource {
	if remote, alias, ok := strings.Cut(image, ":"); ok && remotes[remote] != "" {
		return api.InstanceSource{Type: "image", Mode: "pull", Server: remotes[remote], Protocol: "simplestreams", Alias: alias}
	}
	return api.InstanceSource{Type: "image", Alias: image}
}

// request returns the request that makes and starts the instance of a run. box is the
// folder of the run that the supervisor sees. init is Config.Init.
func request(owner string, t driver.Task, c settings, box string, init []string) api.InstancesPost {
	post := api.InstancesPost{
		Name: instanceName(owner, t.ID), Type: api.InstanceType(c.kind), Source: source(c.image), Start: true,
	}
	post.Profiles = c.profiles
	post.Config = map[string]string{}
	maps.Copy(post.Config, c.config)
	maps.Copy(post.Config, limits(c.kind, t.Resources))
	maps.Copy(post.Config, map[string]string{
		"boot.autostart": "false",
		keyOwner:         owner, keyAlloc: t.ID.Alloc, keyTask: t.ID.Task, keyRun: strconv.Itoa(t.ID.Run),
		keyNode: t.Env["NUSA_NODE"],
	})
	post.Devices = map[string]map[string]string{}
	maps.Copy(post.Devices, c.devices)
	folder := func(name, source, target string, readOnly bool) {
		d := map[string]string{"type": "disk", "source": source, "path": target}
		if readOnly {
			d["readonly"] = "true"
		}
		if c.kind == typeContainer {
			d["shift"] = "true" // root of the container has the rights of root in the folder
		}
		post.Devices[devicePrefix+name] = d
	}
	// The paths are the same as on the host, so that paths in variables are valid in both
	// places.
	folder("task", t.Dir, t.Dir, false)
	folder("alloc", t.AllocDir, t.AllocDir, false)
	for _, v := range t.Volumes {
		folder("volume-"+v.Name, v.Source, t.TargetOf(v), v.ReadOnly)
	}
	if t.SecretsDir != "" {
		folder("secrets", t.SecretsDir, driver.ContainerSecrets, true)
	}
	for _, p := range t.Ports {
		post.Devices[devicePrefix+"port-"+p.Label] = map[string]string{
			"type": "proxy", "listen": fmt.Sprintf("tcp:0.0.0.0:%d", p.Host), "connect": fmt.Sprintf("tcp:127.0.0.1:%d", p.To),
		}
	}
	if c.supervised() {
		folder("run", box, runPath, false)
		post.Devices[devicePrefix+"init"] = map[string]string{"type": "disk", "source": init[0], "path": initPath, "readonly": "true"}
		post.Config["raw.lxc"] = "lxc.init.cmd = " + strings.Join(slices.Concat([]string{initPath}, init[1:], []string{runPath}), " ") + "\nlxc.environment = GOGC=50\n"
	}
	return post
}

// limits returns the limits of an instance. A container gets a limit of CPU time. A virtual
// machine gets whole processors.
func limits(kind string, r driver.Resources) map[string]string {
	out := map[string]string{}
	if r.MemoryBytes > 0 {
		out["limits.memory"] = strconv.FormatInt(r.MemoryBytes, 10)
	}
	switch {
	case r.CPUMilli <= 0:
	case kind == typeVM:
		out["limits.cpu"] = strconv.FormatInt((r.CPUMilli+999)/1000, 10)
	case r.CPUMilli%10 == 0: // an allowance has whole milliseconds
		out["limits.cpu.allowance"] = fmt.Sprintf("%dms/100ms", r.CPUMilli/10)
	default:
		out["limits.cpu.allowance"] = fmt.Sprintf("%dms/1000ms", r.CPUMilli)
	}
	return out
}

// defaultPath is the PATH of the task's command and of the commands of Exec, unless the
// task's env sets another PATH. Images of Incus set no PATH, and the node's own PATH is
// wrong in a container.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// spec returns the specification of a run for its supervisor.
func spec(t driver.Task, c settings) supervise.Spec {
	s := supervise.Spec{
		Argv: append([]string{c.command}, c.args...), Dir: c.dir, User: c.user, Own: t.Dir,
		LogFiles: t.Logs.Files, LogSizeBytes: t.Logs.SizeBytes,
		LeaseDeadline: t.Lease.At, LeaseNumber: t.Lease.Number, StopGrace: t.StopGrace, KillSignal: t.KillSignal, Contained: true,
	}
	for _, k := range slices.Sorted(maps.Keys(t.Env)) {
		s.Env = append(s.Env, k+"="+t.Env[k])
	}
	if _, own := t.Env["PATH"]; !own {
		s.Env = append(s.Env, "PATH="+defaultPath)
	}
	return s
}
