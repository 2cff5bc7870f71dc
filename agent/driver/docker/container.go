package docker

import (
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// cpuPeriod is the period of a hard CPU limit, in microseconds. The value is the kernel's
// default.
const cpuPeriod = 100_000

// fieldHints maps a part of an engine's message to the job file's field that the message
// concerns.
var fieldHints = []struct{ words, field string }{
	{"memory", "resources.memory"}, {"cpu", "resources.cpu"}, {"pids", "config.pids_limit"},
	{"port is already allocated", "ports"}, {"address already in use", "ports"},
	{"unable to find user", "config.user"}, {"unable to find group", "config.user"}, {"no matching entries in", "config.user"},
	{"chdir to cwd", "config.dir"}, {"working directory", "config.dir"},
	{"exec:", "config.command"}, {"exec format error", "config.command"}, {"no command specified", "config.command"},
	{"mount", "volumes"}, {"label", "config.labels"},
}

// faultyField returns the field of the job file that an engine's message concerns. It
// guesses from the text, because the engine does not name the field.
func faultyField(message string) string {
	lower := strings.ToLower(message)
	for _, c := range fieldHints {
		if strings.Contains(lower, c.words) {
			return c.field
		}
	}
	return "config"
}

// options returns the options of the task's container.
func options(t driver.Task, c settings, img client.ImageInspectResult, r *records) client.ContainerCreateOptions {
	cfg := &container.Config{
		Image: c.image, User: c.user, WorkingDir: c.dir, Entrypoint: c.entrypoint, Labels: map[string]string{},
	}
	if cfg.WorkingDir == "" && (img.Config == nil || img.Config.WorkingDir == "") {
		cfg.WorkingDir = t.Dir
	}
	if t.KillSignal != 0 {
		cfg.StopSignal = strconv.Itoa(t.KillSignal)
	}
	if c.command != "" {
		cfg.Cmd = []string{c.command}
	}
	cfg.Cmd = append(cfg.Cmd, c.args...)
	for _, k := range slices.Sorted(maps.Keys(t.Env)) {
		cfg.Env = append(cfg.Env, k+"="+t.Env[k])
	}
	maps.Copy(cfg.Labels, c.labels)
	maps.Copy(cfg.Labels, map[string]string{
		labelOwner: r.owner, labelAlloc: t.ID.Alloc, labelTask: t.ID.Task, labelRun: strconv.Itoa(t.ID.Run),
	})
	host := &container.HostConfig{
		NetworkMode: container.NetworkMode(c.network), Privileged: c.privileged,
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		Resources:     resources(t.Resources, c.hardCPU),
		Mounts:        append(binds(t), bind(r.gate(t.ID), gateTarget, true)),
		// The engine writes both streams into the same files, so a file may have twice the
		// size.
		LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{
			"max-file": strconv.Itoa(max(1, t.Logs.Files)), "max-size": strconv.FormatInt(2*max(4096, t.Logs.SizeBytes), 10),
		}},
	}
	host.PidsLimit = &c.pids
	if len(t.GPUs) > 0 {
		host.DeviceRequests = []container.DeviceRequest{{Driver: "nvidia", DeviceIDs: t.GPUs, Capabilities: [][]string{{"gpu"}}}}
	}
	if c.network == "bridge" {
		cfg.ExposedPorts, host.PortBindings = ports(t.Ports, c.udp)
	}
	return client.ContainerCreateOptions{Name: nameOf(t.ID), Config: cfg, HostConfig: host}
}

// resources converts resources into limits. A container must not use swap.
func resources(r driver.Resources, hard bool) container.Resources {
	var out container.Resources
	if r.MemoryBytes > 0 {
		out.Memory, out.MemorySwap = r.MemoryBytes, r.MemoryBytes // equal values: no swap
	}
	if hard && r.CPUMilli > 0 {
		out.CPUPeriod, out.CPUQuota = cpuPeriod, max(1000, r.CPUMilli*cpuPeriod/1000)
		return out
	}
	out.CPUShares = 1024 // the kernel's default for one core
	if r.CPUMilli > 0 {
		out.CPUShares = min(max(2, r.CPUMilli*1024/1000), 262144)
	}
	return out
}

// binds returns the mounts of the task's folders and volumes. Inside the container the
// folders have the same paths as on the host, because variables such as NUSA_TASK_DIR name
// these paths.
func binds(t driver.Task) []mount.Mount {
	out := []mount.Mount{bind(t.Dir, t.Dir, false), bind(t.AllocDir, t.AllocDir, false)}
	for _, v := range t.Volumes {
		out = append(out, bind(v.Source, t.TargetOf(v), v.ReadOnly))
	}
	if t.SecretsDir != "" {
		out = append(out, bind(t.SecretsDir, driver.ContainerSecrets, true))
	}
	return out
}

func bind(source, target string, readOnly bool) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: source, Target: target, ReadOnly: readOnly}
}

func ports(list []driver.Port, udp []string) (network.PortSet, network.PortMap) {
	set, bound := network.PortSet{}, network.PortMap{}
	for _, p := range list {
		protocols := []network.IPProtocol{network.TCP}
		if slices.Contains(udp, p.Label) {
			protocols = append(protocols, network.UDP)
		}
		for _, protocol := range protocols {
			port, _ := network.PortFrom(uint16(p.To), protocol)
			set[port] = struct{}{}
			bound[port] = append(bound[port], network.PortBinding{HostIP: netip.IPv4Unspecified(), HostPort: strconv.Itoa(p.Host)})
		}
	}
	return set, bound
}

// chown gives the task's folder to the container's user. If the job names the user by a
// word, only the image knows the user's number, and then every user may write to the
// folder. That is safe, because only the agent can enter the private parent folders.
func chown(dir, user string) error {
	name, group, _ := strings.Cut(user, ":")
	if name == "" || name == "root" || name == "0" {
		return nil
	}
	uid, err := strconv.Atoi(name)
	if err != nil {
		return os.Chmod(dir, 0o777)
	}
	gid, err := strconv.Atoi(group)
	if err != nil {
		gid = -1
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, gid)
	})
}

// chownSecrets gives the secrets to the container's user. If only the image knows the
// user's number, every user of that container may read the secrets.
func chownSecrets(dir, user string) error {
	if dir == "" {
		return nil
	}
	name, _, _ := strings.Cut(user, ":")
	if _, err := strconv.Atoi(name); err == nil || name == "" || name == "root" {
		return chown(dir, user)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	for _, f := range files {
		err = errors.Join(err, os.Chmod(f, 0o444))
	}
	return errors.Join(err, os.Chmod(dir, 0o555))
}
