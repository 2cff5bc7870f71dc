package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/docker"
	"github.com/nusa-scheduler/nusa/agent/driver/incus"
	"github.com/nusa-scheduler/nusa/agent/driver/mounts"
	"github.com/nusa-scheduler/nusa/agent/driver/process"
	"github.com/nusa-scheduler/nusa/agent/driver/reserve"
	"github.com/nusa-scheduler/nusa/agent/engine"
	"github.com/nusa-scheduler/nusa/agent/facts"
	"github.com/nusa-scheduler/nusa/agent/gpu"
	"github.com/nusa-scheduler/nusa/agent/setup"
	"github.com/nusa-scheduler/nusa/agent/supervise"
	"github.com/nusa-scheduler/nusa/internal/boottime"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/member"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// Config configures an agent. A field with the zero value gets its default.
type Config struct {
	// Region is the name of the agent's region. It is required.
	Region string
	// Name is the name of the node. Default: the host name.
	Name string
	// Description is a text for people, at most 256 bytes.
	Description string
	// DataDir holds the local store and the folders of the allocations, with mode 0700.
	// Only this agent may use the directory. It is required.
	DataDir string
	// Servers are gRPC addresses of regional servers. One reachable server is enough,
	// because the agent learns the others from that server. At least one address is
	// required.
	Servers []string
	// HTTPAddr is the address that serves /livez, /readyz and /metrics. Default:
	// "127.0.0.1:7620". With "-" the agent serves no HTTP.
	HTTPAddr string
	// DNSAddr is the address at which the agent answers DNS questions about services, over UDP and TCP.
	// Default: none, so the agent has no copy of the services.
	DNSAddr string
	// Version is the version of the build, for people. Default: serve.Version.
	Version string

	// Pool is the node's pool. Default: "default".
	Pool   string
	Labels map[string]string
	// Address is the IP address of this machine at which others reach the ports of its tasks. Services name it.
	// Default: the first address of the machine that is not loopback or link-local.
	Address string
	// Capacity replaces the measured values of the host, where a field is not 0. Reserve is
	// subtracted in any case.
	Capacity, Reserve driver.Resources
	// SharedMachine names the machine if several agents share it. Share is this agent's
	// share of the machine, 0..1. By default the machine is not shared, and Share is 1.
	SharedMachine string
	Share         float64
	// InstanceQuota bounds the allocations that run at the same time. 0 means no bound.
	InstanceQuota int
	// PortMin and PortMax are the first and the last dynamic port. Default: 20000 and
	// 32000.
	PortMin, PortMax int
	// MaxRetainedBytes bounds the output and the working folders of ended allocations
	// together, in bytes. The agent removes the oldest first. Default: 1 GiB. The job file
	// bounds the output of a running task. MaxRetainedFolders bounds the number of working
	// folders of ended allocations. Default: 500.
	MaxRetainedBytes   int64
	MaxRetainedFolders int
	// ControlPlane says that this node also runs servers and takes no work. An agent beside servers
	// takes work unless it says so.
	ControlPlane bool
	// LeaveOnShutdown makes the agent stop every task and send a goodbye when it ends, so
	// that the work moves to other nodes at once. Without LeaveOnShutdown the tasks
	// continue, and the agent's next start adopts them.
	LeaveOnShutdown bool
	// PauseOnShutdown makes the agent stop every task and report nothing when it ends. The
	// agent's next start runs the tasks again, as the same allocations, and counts neither
	// a failure nor a restart. Set PauseOnShutdown in a federation that starts and ends as
	// a whole.
	PauseOnShutdown bool
	// RemoveOnShutdown makes the agent remove the runs of all tasks when it ends, with
	// their output and containers. RemoveOnShutdown needs PauseOnShutdown. Set it if the
	// data directory is deleted afterwards, because nothing else would ever remove the
	// containers.
	RemoveOnShutdown bool

	// VolumesAllow are folders of the host. Jobs may have volumes in these folders and
	// below. Default: none.
	VolumesAllow []string
	// ArtifactsAllow are further sources from which jobs may fetch artifacts, besides all
	// public addresses: address prefixes such as 10.0.0.0/8, and folders for file://
	// addresses. Default: none.
	ArtifactsAllow []string
	// ArtifactsMax bounds the artifacts of one task, in bytes. The bound holds for the
	// fetched files and again for the unpacked files. Default: 1 GiB.
	ArtifactsMax int64
	// SecretsDir is a folder with the secrets of jobs, in files NAMESPACE/NAME that only
	// their owner can read. Default: none.
	SecretsDir string
	// ProcessUser is the user that runs a process whose job names no user. ProcessUsers are
	// the users that jobs may name, as USER or USER:GROUP. A user of ProcessUsers gets no
	// supplementary groups. By default processes run as the agent's own user, and jobs may
	// name every user, with all its groups.
	ProcessUser  string
	ProcessUsers []string

	// Net opens the sockets. Default: the host's network.
	Net network.Net
	// Identity encrypts the connections to the regional servers, and says which node this
	// is. Default: none, so connections are not encrypted.
	Identity *trust.Source
	// Orders gets the certificates that the region wants the agent to have. It may be nil.
	Orders *member.Orders
	// Logger receives the log messages. Default: all messages are discarded.
	Logger *slog.Logger
	// Clock is the clock that leases are counted with. Default: CLOCK_BOOTTIME. The process
	// driver can use no other clock.
	Clock func() time.Duration
	// ReleaseMemory makes the agent return unused memory to the kernel while it is idle.
	// Set it only if this agent is alone in its process.
	ReleaseMemory bool
	// BootID identifies the present boot of the host. Default: the kernel's boot id.
	BootID string
	// DockerHost is the address of the Docker engine. Default: docker.DefaultHost, if that
	// socket exists or the agent used it before. With "off" the agent has no driver docker.
	DockerHost string
	// DockerAuth is a file with passwords of registries, in the format of Docker's
	// config.json. Only its owner may be able to read the file. Default: none.
	DockerAuth string
	// DockerPrivileged lets jobs run privileged containers.
	DockerPrivileged bool
	// GPUs returns the accelerators of the host that this agent may give to tasks. Default: all
	// accelerators. With Drivers or SharedMachine the default is none, because another agent may
	// give the same devices to its tasks.
	GPUs func(context.Context) ([]gpu.Device, error)
	// GPURoot is the root of the file system with the files of the accelerators' driver. The agent
	// offers the accelerators below it even with Drivers or SharedMachine. Default: "/".
	GPURoot string
	// Plugins maps the name of a further driver to the path of its executable (package
	// agent/driver/plugin). At most 16 are allowed.
	Plugins map[string]string
	// Drivers maps a name to a driver, besides the plugins. Default: process with
	// SupervisorArgv, reserve, docker and incus.
	Drivers map[string]driver.Driver
	// Incus is the address of the daemon for the driver incus: the absolute path of a
	// socket, an address https://…, or "off" for no driver incus. Default: the host's own
	// socket, if it exists or the agent used it before. IncusCert, IncusKey and IncusCA are
	// PEM files for https. Without IncusCA the agent trusts the authorities of the system.
	Incus, IncusCert, IncusKey, IncusCA string
	// IncusPrivileged lets jobs use every key and device of Incus, even if a key or device
	// gives root on the host. IncusProfiles are the daemon's profiles that jobs may name,
	// besides the profile default.
	IncusPrivileged bool
	IncusProfiles   []string
	// SupervisorArgv is the command line of a supervisor. Default: slim.Argv below DataDir.
	// If slim.Argv fails, the default is this executable with the argument "supervise".
	SupervisorArgv []string
	// Facts measures the host. Agents of one process may share a source. Default:
	// facts.Host().
	Facts facts.Source
	// Ready is called once the local store is open, the tasks are adopted and HTTP is
	// served. The agent may have no session with a master yet.
	Ready func(Addresses)

	// setup prepares the files of tasks.
	setup *setup.Setup
	// closeDrivers closes the default drivers and the plugins. driversChanged receives a
	// value when the fingerprint of a driver may have changed.
	closeDrivers   func()
	driversChanged <-chan struct{}
	// remoteHosts maps a driver to the host name of its engine, where the ports of its
	// tasks are. The name is empty if the engine is on this host.
	remoteHosts map[string]string
}

// allocsDir is the folder of the allocations in the data directory.
const allocsDir = "allocs"

// errConfig is wrapped by every configuration error. The text of such an error names the
// flag.
var errConfig = errors.New("agent configuration")

// withDefaults checks the configuration and sets the defaults of plain values.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Region == "":
		return c, fmt.Errorf("%w: --region is required", errConfig)
	case c.DataDir == "":
		return c, fmt.Errorf("%w: --data-dir is required", errConfig)
	case len(c.Servers) == 0 || slices.Contains(c.Servers, ""):
		return c, fmt.Errorf("%w: --servers needs at least one address of a regional server", errConfig)
	case c.Address != "" && !isAddress(c.Address):
		return c, fmt.Errorf("%w: --service-address: %q is not an IP address that another machine can reach: give one without a port", errConfig, c.Address)
	case c.Share < 0 || c.Share > 1:
		return c, fmt.Errorf("%w: share %v is not within 0..1", errConfig, c.Share)
	case len(c.Labels) > 64:
		return c, fmt.Errorf("%w: %d labels, at most 64", errConfig, len(c.Labels))
	case len(c.Description) > 256:
		return c, fmt.Errorf("%w: --description has %d bytes, at most 256", errConfig, len(c.Description))
	case c.LeaveOnShutdown && c.PauseOnShutdown:
		return c, fmt.Errorf("%w: LeaveOnShutdown and PauseOnShutdown exclude each other", errConfig)
	case c.RemoveOnShutdown && !c.PauseOnShutdown:
		return c, fmt.Errorf("%w: RemoveOnShutdown needs PauseOnShutdown", errConfig)
	case c.ArtifactsMax < 0:
		return c, fmt.Errorf("%w: --artifacts-max is negative", errConfig)
	case c.MaxRetainedBytes < 0:
		return c, fmt.Errorf("%w: --kept-logs is negative", errConfig)
	case c.MaxRetainedFolders < 0:
		return c, fmt.Errorf("%w: --kept-folders is negative", errConfig)
	case c.InstanceQuota < 0:
		return c, fmt.Errorf("%w: --instance-quota %d is negative", errConfig, c.InstanceQuota)
	case c.PortMin < 0 || c.PortMax > 65535 || c.PortMin > c.PortMax:
		return c, fmt.Errorf("%w: ports %d..%d: not a range within 1..65535", errConfig, c.PortMin, c.PortMax)
	}
	err := checkPlugins(c.Plugins)
	if err != nil {
		return c, err
	}
	c.DataDir, err = filepath.Abs(c.DataDir)
	if err != nil {
		return c, fmt.Errorf("%w: --data-dir: %w", errConfig, err)
	}
	if c.Name == "" {
		c.Name, err = os.Hostname()
		if err != nil {
			return c, fmt.Errorf("%w: --name: no host name: %w", errConfig, err)
		}
	}
	own := identity.Rules{{Kind: identity.Agent, Region: c.Region, Name: c.Name}}
	if err := c.Identity.Require("nusa agent --region "+c.Region+" --name "+c.Name, own); err != nil {
		return c, fmt.Errorf("%w: --identity: %w", errConfig, err)
	}
	if c.PortMax == 0 {
		c.PortMin, c.PortMax = 20000, 32000
	}
	if c.MaxRetainedBytes == 0 {
		c.MaxRetainedBytes = engine.DefaultRetainedBytes
	}
	if c.MaxRetainedFolders == 0 {
		c.MaxRetainedFolders = engine.DefaultRetainedFolders
	}
	if c.Share == 0 {
		c.Share = 1
	}
	c.Pool = orElse(c.Pool, "default")
	c.HTTPAddr = orElse(c.HTTPAddr, "127.0.0.1:7620")
	return c, nil
}

// isAddress reports whether a text is the IP address of one machine.
func isAddress(text string) bool {
	ip, err := netip.ParseAddr(text)
	return err == nil && ip.Zone() == "" && !ip.IsUnspecified() && !ip.IsMulticast()
}

// withParts makes the parts that the configuration lacks. This agent must have locked the
// data directory.
func (c Config) withParts() (Config, error) {
	if c.Net.Dial == nil {
		c.Net = network.Host()
	}
	if c.Logger == nil {
		c.Logger = discard()
	}
	if c.Clock == nil {
		c.Clock = boottime.Now
	}
	c.BootID = orElse(c.BootID, supervise.BootID())
	if c.Facts.Static == nil || c.Facts.Stats == nil {
		c.Facts = facts.Host()
	}
	var err error
	c.setup, err = c.newSetup(filepath.Join(c.DataDir, allocsDir))
	if err != nil {
		return c, err
	}
	if c.GPUs == nil {
		c.GPUs = gpu.Host{Root: c.GPURoot}.Devices
		if c.GPURoot == "" && (len(c.Drivers) > 0 || c.SharedMachine != "") {
			c.GPUs = func(context.Context) ([]gpu.Device, error) { return nil, nil }
		}
	}
	if len(c.Drivers) > 0 {
		c.Drivers, c.closeDrivers = maps.Clone(c.Drivers), func() {}
		return c.withPlugins()
	}
	argv := c.SupervisorArgv
	if len(argv) == 0 {
		argv, err = supervisorArgv(c.DataDir, c.Logger)
		if err != nil {
			return c, err
		}
	}
	users, err := process.ParseUsers(c.ProcessUser, c.ProcessUsers)
	if err != nil {
		return c, fmt.Errorf("%w: %w", errConfig, err)
	}
	p := process.New(process.Config{Dir: filepath.Join(c.DataDir, "process"), SupervisorArgv: argv, Users: users, Hide: c.DataDir})
	books, err := reserve.New(reserve.Config{Dir: filepath.Join(c.DataDir, "reserve"), Clock: c.Clock, BootID: c.BootID})
	if err != nil {
		p.Close()
		return c, err
	}
	c.Drivers, c.remoteHosts = map[string]driver.Driver{"process": p, "reserve": books}, map[string]string{}
	c.closeDrivers = func() { p.Close(); books.Close() }
	c, err = c.withDocker()
	if err != nil {
		return c, err
	}
	c, err = c.withIncus(argv)
	if err != nil {
		return c, err
	}
	return c.withPlugins()
}

// withDocker adds the driver docker if the host has an engine, or if this agent had the
// driver before. In the second case its containers must be adopted even if the engine
// starts after the agent.
func (c Config) withDocker() (Config, error) {
	dir := filepath.Join(c.DataDir, "docker")
	if c.DockerHost == "" {
		_, noSocket := os.Stat(strings.TrimPrefix(docker.DefaultHost, "unix://"))
		_, never := os.Stat(dir)
		if noSocket != nil && never != nil {
			return c, nil
		}
	}
	if c.DockerHost == "off" {
		return c, nil
	}
	d, err := docker.New(docker.Config{Dir: dir, Host: c.DockerHost, Auth: c.DockerAuth, AllowPrivileged: c.DockerPrivileged})
	if err != nil {
		return c, fmt.Errorf("%w: --docker-host, --docker-auth: %w", errConfig, err)
	}
	closeOthers := c.closeDrivers
	c.remoteHosts["docker"] = hostOf(c.DockerHost)
	c.Drivers["docker"], c.closeDrivers = d, func() { d.Close(); closeOthers() }
	return c, nil
}

// withIncus adds the driver incus if the host has a daemon, or if this agent had the driver
// before, like withDocker. argv is the command line of a supervisor.
func (c Config) withIncus(argv []string) (Config, error) {
	dir := filepath.Join(c.DataDir, "incus")
	if c.Incus == "" {
		c.Incus = incus.SocketPath()
		_, noSocket := os.Stat(c.Incus)
		_, never := os.Stat(dir)
		if noSocket != nil && never != nil {
			return c, nil
		}
	}
	if c.Incus == "off" {
		return c, nil
	}
	trust, err := incus.LoadTLS(c.IncusCert, c.IncusKey, c.IncusCA)
	if err != nil {
		return c, fmt.Errorf("%w: --incus-cert, --incus-key, --incus-ca: %w", errConfig, err)
	}
	d, err := incus.New(incus.Config{Dir: dir, Address: c.Incus, TLS: trust, Init: argv, AllowPrivileged: c.IncusPrivileged, Profiles: c.IncusProfiles})
	if err != nil {
		return c, fmt.Errorf("%w: --incus: %w", errConfig, err)
	}
	closeOthers := c.closeDrivers
	c.remoteHosts["incus"] = hostOf(c.Incus)
	c.Drivers["incus"], c.closeDrivers = d, func() { d.Close(); closeOthers() }
	return c, nil
}

// hostOf returns the host name in an engine's address, or "" if the address is a socket on
// this host.
func hostOf(address string) string {
	if u, err := url.Parse(address); err == nil {
		return u.Hostname()
	}
	return ""
}

// newSetup returns the setup for the allocations below dir.
func (c Config) newSetup(dir string) (*setup.Setup, error) {
	s, err := setup.New(setup.Config{Dir: dir, Private: []string{c.DataDir, c.SecretsDir, mounts.Root}, VolumesAllow: c.VolumesAllow,
		ArtifactsAllow: c.ArtifactsAllow, ArtifactsMax: c.ArtifactsMax, SecretsDir: c.SecretsDir, Dial: c.Net.Dial, Logger: c.Logger})
	if err != nil {
		return nil, fmt.Errorf("%w: --%w", errConfig, err)
	}
	return s, nil
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
