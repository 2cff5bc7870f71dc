package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
)

// pathBytes bounds a text that is a path or a name, in bytes.
const pathBytes = 4096

// Process is the config of the driver process.
var Process = Schema{
	{Name: "command", Kind: Text, Required: true, most: pathBytes, Help: "the program to run"},
	{Name: "args", Kind: Texts},
	{Name: "user", Kind: Text, most: pathBytes},
	{Name: "dir", Kind: Text, most: pathBytes},
	{Name: "cpu_hard_limit", Kind: Bool},
	{Name: "ulimits", Kind: Map, more: checkUlimits},
}

// MaxPids bounds the processes of a container.
const MaxPids = 1 << 22

// Docker is the config of the driver docker. examples/docker.yaml explains it.
var Docker = Schema{
	{Name: "image", Kind: Text, Required: true, most: pathBytes, Help: "the image to run, such as alpine:3.22", more: checkImage},
	{Name: "pull", Kind: Text, Values: []string{"if_absent", "always", "never"}},
	{Name: "entrypoint", Kind: Texts},
	{Name: "command", Kind: Text},
	{Name: "args", Kind: Texts},
	{Name: "user", Kind: Text, most: pathBytes},
	{Name: "dir", Kind: Text, most: pathBytes, Absolute: true, Help: "a folder inside the container"},
	{Name: "labels", Kind: TextMap, more: checkDockerLabels},
	{Name: "network", Kind: Text, Values: []string{"bridge", "host", "none"}},
	{Name: "udp", Kind: Texts},
	{Name: "pids_limit", Kind: Integer, Min: 1, Max: MaxPids},
	{Name: "cpu_hard_limit", Kind: Bool},
	{Name: "privileged", Kind: Bool},
}

// Incus is the config of the driver incus. examples/incus.yaml explains it.
var Incus = Schema{
	{Name: "image", Kind: Text, Required: true, most: pathBytes, Help: "an alias, a fingerprint, or images:ALIAS"},
	{Name: "type", Kind: Text, Values: []string{"container", "virtual-machine"}},
	{Name: "command", Kind: Text, filled: true, most: pathBytes},
	{Name: "args", Kind: Texts},
	{Name: "dir", Kind: Text, filled: true, most: pathBytes},
	{Name: "user", Kind: Text, filled: true, most: pathBytes},
	{Name: "profiles", Kind: Texts},
	{Name: "config", Kind: ScalarMap, more: checkIncusKeys},
	{Name: "devices", Kind: Map, more: checkIncusDevices},
	{Name: "target", Kind: Text, filled: true, most: pathBytes},
}

// MaxTTL bounds `ttl` of the driver reserve.
const MaxTTL = 87600 * time.Hour

// Reserve is the config of the driver reserve.
var Reserve = Schema{
	{Name: "ttl", Kind: Text, filled: true, Help: "the time after which the task completes, such as 10m", more: checkTTL},
}

// Of returns the schema of a built-in driver.
func Of(driver string) (Schema, bool) {
	switch driver {
	case "process":
		return Process, true
	case "docker":
		return Docker, true
	case "incus":
		return Incus, true
	case "reserve":
		return Reserve, true
	}
	return nil, false
}

// The prefixes of what the drivers set themselves.
const (
	DockerLabelPrefix = "nusa."
	IncusKeyPrefix    = "user.nusa."
	IncusDevicePrefix = "nusa-"
)

func checkDockerLabels(v any, at string, fail Report) {
	for _, k := range slices.Sorted(maps.Keys(v.(map[string]any))) {
		if strings.HasPrefix(k, DockerLabelPrefix) {
			fail(Key(at, k), "labels that begin with "+DockerLabelPrefix+" are Nusa's own")
		}
	}
}

// checkIncusKeys refuses keys that the driver sets itself.
func checkIncusKeys(v any, at string, fail Report) {
	for _, k := range slices.Sorted(maps.Keys(v.(map[string]any))) {
		if k == "boot.autostart" || k == "raw.lxc" || strings.HasPrefix(k, IncusKeyPrefix) || strings.HasPrefix(k, "volatile.") {
			fail(Key(at, k), "is set only by the driver")
		}
	}
}

var deviceName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)

func checkIncusDevices(v any, at string, fail Report) {
	m := v.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(m)) {
		at := Key(at, name)
		if !deviceName.MatchString(name) || strings.HasPrefix(name, IncusDevicePrefix) {
			fail(at, fmt.Sprintf("not a name for a device (%s… are the driver's own)", IncusDevicePrefix))
		}
		if !scalarMap(ScalarMap, m[name], at, fail) {
			continue
		}
		if kind := Values(m[name].(map[string]any)); !kind.Has("type") || kind["type"] == "" {
			fail(at+".type", "is missing: disk, nic, proxy, …")
		}
	}
}

// checkImage refuses what no registry can have, such as "nginx latest". It leaves the rest to the engine.
func checkImage(v any, at string, fail Report) {
	if strings.ContainsFunc(v.(string), unicode.IsSpace) {
		fail(at, "must not contain blanks, such as alpine:3.22")
	}
}

// checkTTL checks a duration.
func checkTTL(v any, at string, fail Report) {
	if d, err := time.ParseDuration(v.(string)); err != nil || d < 0 || d > MaxTTL {
		fail(at, fmt.Sprintf("must be a duration of 0s to %dh, such as 10m", int(MaxTTL.Hours())))
	}
}

// IncusLimits reports whether a config of incus sets a limit that comes from the task's resources, and the
// path of the limit.
func IncusLimits(v Values, memory, cpu bool) (at string, twice bool) {
	keys := v.Map("config")
	switch {
	case memory && keys.Has("limits.memory"):
		return Key(".config", "limits.memory"), true
	case cpu && keys.Has("limits.cpu.allowance"):
		return Key(".config", "limits.cpu.allowance"), true
	}
	return "", false
}

// LimitTwice is the problem of such a limit.
const LimitTwice = "comes from the task's resources"
