package confine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
)

// IncusVM is the type of a virtual machine of Incus.
const IncusVM = "virtual-machine"

// harmlessKeys are keys of an instance's configuration that give no access to the host.
// They bound resources, or only the guest uses them. Every other key is a privilege, also
// the keys of later versions of Incus.
var harmlessKeys = []string{
	"agent.nic_config", "security.secureboot",
	"limits.cpu", "limits.cpu.allowance", "limits.cpu.nodes", "limits.cpu.priority", "limits.disk.priority",
	"limits.memory", "limits.memory.swap", "limits.memory.swap.priority", "limits.processes",
	"limits.kernel.as", "limits.kernel.core", "limits.kernel.cpu", "limits.kernel.data", "limits.kernel.fsize",
	"limits.kernel.memlock", "limits.kernel.nofile", "limits.kernel.nproc", "limits.kernel.stack",
}

// guestKeys are prefixes of keys that only the guest reads. Their values may have
// several lines.
var guestKeys = []string{"cloud-init.", "user."}

// environment is the prefix of variables. An engine may write their values unchanged into
// the file that starts the container, so each value must be one line.
const environment = "environment."

// Switches that are harmless when they are off, and switches that are harmless when they
// are on.
var (
	harmlessOff = []string{"security.guestapi", "security.nesting", "security.privileged"}
	harmlessOn  = []string{"security.idmap.isolated"}
)

// A device is harmless if it has only these keys, besides its type. A nic joins a network
// of the operator. A root disk belongs to the instance.
var (
	nicKeys  = []string{"boot.priority", "hwaddr", "ipv4.address", "ipv6.address", "limits.egress", "limits.ingress", "limits.max", "limits.priority", "mtu", "name", "network"}
	rootKeys = []string{"boot.priority", "limits.max", "limits.read", "limits.write", "path", "pool", "size", "size.state"}
	// driveKeys are the keys of a disk device whose source is one of drives. Such a device
	// configures a virtual machine.
	driveKeys = []string{"boot.priority", "source"}
	drives    = []string{"agent:config", "cloud-init:config"}
)

// IncusPrivilege returns the first setting of a task that may give access to the host, and why. Both
// are empty if there is none. kind is the type of the instance.
func IncusPrivilege(kind string, config map[string]string, devices map[string]map[string]string) (field, why string) {
	for _, k := range slices.Sorted(maps.Keys(config)) {
		if !harmlessKey(k, config[k]) {
			return fmt.Sprintf("config.config[%q]", k), "it is not known to be harmless with this value"
		}
	}
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		d, field := devices[name], fmt.Sprintf("config.devices[%q]", name)
		keys, why := deviceKeys(kind, d)
		if why != "" {
			return field, why
		}
		for _, k := range slices.Sorted(maps.Keys(d)) {
			if k != "type" && !slices.Contains(keys, k) || strings.ContainsFunc(d[k], unicode.IsControl) {
				return fmt.Sprintf("%s[%q]", field, k), "it is not known to be harmless"
			}
		}
	}
	return "", ""
}

func harmlessKey(k, value string) bool {
	begins := func(prefix string) bool { return strings.HasPrefix(k, prefix) }
	switch {
	case strings.ContainsFunc(k, unicode.IsControl):
		return false
	case slices.ContainsFunc(guestKeys, begins):
		return true
	case strings.ContainsFunc(value, unicode.IsControl):
		return false
	case slices.Contains(harmlessOff, k):
		return slices.Contains([]string{"false", "0", "no", "off"}, strings.ToLower(value))
	case slices.Contains(harmlessOn, k):
		return slices.Contains([]string{"true", "1", "yes", "on"}, strings.ToLower(value))
	}
	return begins(environment) || slices.Contains(harmlessKeys, k)
}

// deviceKeys returns the keys that a device may have besides its type. If the device is not
// allowed at all, why says the reason.
func deviceKeys(kind string, d map[string]string) (keys []string, why string) {
	switch {
	case d["type"] == "none":
		return nil, ""
	case d["type"] == "nic" && d["network"] == "":
		return nil, "a nic without a managed network joins one of the machine's"
	case d["type"] == "nic":
		return nicKeys, ""
	case d["type"] == "disk" && d["path"] == "/" && d["source"] == "":
		return rootKeys, ""
	case d["type"] == "disk" && kind == IncusVM && slices.Contains(drives, d["source"]):
		return driveKeys, ""
	case d["type"] == "disk":
		return nil, "a disk other than the root disk belongs to the machine: use the group's `volumes`"
	}
	return nil, fmt.Sprintf("a device of type %q reaches the machine", d["type"])
}
