package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/docker"
	"github.com/nusa-scheduler/nusa/agent/driver/incus"
	"github.com/nusa-scheduler/nusa/agent/driver/mounts"
	"github.com/nusa-scheduler/nusa/agent/driver/process"
	"github.com/nusa-scheduler/nusa/agent/engine"
	"github.com/nusa-scheduler/nusa/agent/facts"
	"github.com/nusa-scheduler/nusa/agent/setup"
	"github.com/nusa-scheduler/nusa/agent/supervise"
	"github.com/nusa-scheduler/nusa/internal/network"
)

// Config of an agent. A zero value means the default.
type Config struct {
	// Region is the name of the agent's region. Required.
	Region string
	// Name of the node. Default: the host name.
	Name string
	// Description for people, at most 256 bytes.
	Description string
	// DataDir holds the local store and the allocations' folders (0700). Only this
	// agent uses it. Required.
	DataDir string
	// Servers are gRPC addresses of regional servers. One address that answers is
	// enough: the agent learns the others. Required.
	Servers []string
	// HTTPAddr serves /livez, /readyz and /metrics. Default "127.0.0.1:7620";
	// "-" serves no HTTP.
	HTTPAddr string
	// Version of the build, for people. Default: serve.Version.
	Version string

	// Pool of the node. Default "default".
	Pool   string
	Labels map[string]string
	// Capacity replaces the host's values that are not 0. Reserve is always
	// subtracted.
	Capacity, Reserve driver.Resources
	// SharedMachine names the machine if several agents share it. Share is this agent's
	// part of the machine, 0..1. Default: the machine is not shared, and Share is 1.
	SharedMachine string
	Share         float64
	// InstanceQuota bounds the concurrent allocations. 0: no bound.
	InstanceQuota int
	// PortMin..PortMax are the dynamic ports, both included. Default 20000..32000.
	PortMin, PortMax int
	// MaxRetainedBytes bounds the output and working folders of ended allocations, in
	// bytes. The oldest are removed first. Default 1 GiB. Job files bound the output of
	// running tasks. MaxRetainedFolders bounds the number of working folders of ended
	// allocations. Default 500.
	MaxRetainedBytes   int64
	MaxRetainedFolders int
	// ControlPlane: this node also runs servers. It takes only work that asks for
	// such nodes.
	ControlPlane bool
	// LeaveOnShutdown stops every task at the end and says goodbye, so that the work
	// moves to other nodes at once. Without LeaveOnShutdown the tasks go on, and the
	// agent's next start adopts them.
	LeaveOnShutdown bool
	// PauseOnShutdown stops every task at the end and reports nothing. The agent's next
	// start runs the tasks again, as the same allocations, without counting a failure or
	// a restart. A federation that starts and ends as a whole sets it.
	PauseOnShutdown bool
	// RemoveOnShutdown removes the runs of all tasks at the end, with their output and
	// containers. It needs PauseOnShutdown. Set it if the data directory is deleted
	// afterwards, because containers without a data directory would stay for ever.
	RemoveOnShutdown bool

	// VolumesAllow are the host's folders below which jobs may have volumes.
	// Default: none.
	VolumesAllow []string
	// ArtifactsAllow adds places from which jobs may fetch artifacts: prefixes of
	// addresses such as 10.0.0.0/8, besides the public addresses, and folders for
	// file://. Default: none.
	ArtifactsAllow []string
	// ArtifactsMax bounds the artifacts of a task, in bytes, as fetched and as unpacked.
	// Default 1 GiB.
	ArtifactsMax int64
	// SecretsDir holds the secrets of jobs as NAMESPACE/NAME, readable only by
	// their owner. Default: none.
	SecretsDir string
	// ProcessUser is the user of processes whose job names no user. ProcessUsers are the
	// users that jobs may name, as USER or USER:GROUP; they get no further groups.
	// Default: the agent's own user, and every user with all its groups.
	ProcessUser  string
	ProcessUsers []string

	// Net opens sockets. Default: the host's.
	Net network.Net
	// Credentials for the regional servers. Default: none (loopback only).
	Credentials credentials.TransportCredentials
	// Logger. Default: discards all messages.
	Logger *slog.Logger
	// Clock counts leases. Default: CLOCK_BOOTTIME, the only clock that the process
	// driver knows.
	Clock func() time.Duration
	// ReleaseMemory returns unused memory to the kernel when the agent is at rest. Set it
	// only if the process belongs to this agent alone.
	ReleaseMemory bool
	// BootID distinguishes boots of the host. Default: the kernel's.
	BootID string
	// DockerHost is the Docker engine's address. Default: docker.DefaultHost, if that
	// socket exists or existed. "off": there is no driver docker.
	DockerHost string
	// DockerAuth is a file with passwords of registries in the format of Docker's
	// config.json, readable only by its owner. Default: none.
	DockerAuth string
	// DockerPrivileged lets jobs run privileged containers.
	DockerPrivileged bool
	// Plugins are further drivers: the path of an executable by the driver's name,
	// at most 16 (package agent/driver/plugin).
	Plugins map[string]string
	// Drivers by name, besides the plugins. Default: docker, incus, and process with
	// SupervisorArgv.
	Drivers map[string]driver.Driver
	// Incus is the daemon's address for the driver incus: the absolute path of a socket,
	// https://…, or "off" for no driver incus. Default: the host's own socket, if it
	// exists or existed. IncusCert, IncusKey and IncusCA are PEM files for https. Without
	// IncusCA the system's authorities are trusted.
	Incus, IncusCert, IncusKey, IncusCA string
	// IncusPrivileged lets jobs use every key and device of Incus; some of them are
	// root on the host. IncusProfiles are the daemon's profiles that jobs may name
	// besides the one named default.
	IncusPrivileged bool
	IncusProfiles   []string
	// SupervisorArgv is the command line of a supervisor. Default: slim.Argv below
	// DataDir, else this executable with "supervise".
	SupervisorArgv []string
	// Facts about the host. Agents of one process may share a source. Default:
	// facts.Host().
	Facts facts.Source
	// Ready is called once the local store is open, tasks are adopted and HTTP is
	// served. The agent need not be connected then.
	Ready func(Addresses)

	// setup prepares tasks.
	setup *setup.Setup
	// closeDrivers ends the default drivers and the plugins. driversChanged receives a
	// value when a driver's fingerprint may have changed.
	closeDrivers   func()
	driversChanged <-chan struct{}
	// remoteHosts maps a driver to the host of its ports, if the driver's engine is
	// reached over the network.
	remoteHosts map[string]string
}

// allocsDir is the folder of the allocations in the data directory.
const allocsDir = "allocs"

// errConfig is wrapped by every configuration error. The text of the error names the flag.
var errConfig = errors.New("agent configuration")

// withDefaults checks the configuration and sets defaults of plain values.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Region == "":
		return c, fmt.Errorf("%w: --region is required", errConfig)
	case c.DataDir == "":
		return c, fmt.Errorf("%w: --data-dir is required", errConfig)
	case len(c.Servers) == 0 || slices.Contains(c.Servers, ""):
		return c, fmt.Errorf("%w: --servers needs at least one address of a regional server", errConfig)
	case c.Share < 0 || c.Share > 1:
		return c, fmt.Errorf("%w: share %v is not within 0..1", errConfig, c.Share)
	case len(c.Labels) > 64:
		return c, fmt.Errorf("%w: %d labels, at most 64", errConfig, len(c.Labels))
	case len(c.Description) > 256:
		return c, fmt.Errorf("%w: --description has %d bytes, at most 256", errConfig, len(c.Description))
	case c.LeaveOnShutdown && c.PauseOnShutdown:
		return c, fmt.Errorf("%w: it either leaves or pauses at shutdown", errConfig)
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

// withParts makes the missing parts. This agent must have locked the data directory.
func (c Config) withParts() (Config, error) {
	if c.Net.Dial == nil {
		c.Net = network.Host()
	}
	if c.Logger == nil {
		c.Logger = discard()
	}
	if c.Clock == nil {
		c.Clock = supervise.Boottime
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
	c.Drivers, c.closeDrivers, c.remoteHosts = map[string]driver.Driver{"process": p}, p.Close, map[string]string{}
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

// withDocker adds the driver docker if there is or was an engine: its containers
// must be adopted even if the engine starts after the agent.
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

// withIncus adds the driver incus if there is or was a daemon, as withDocker does for an
// engine. argv is the command line of a supervisor.
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

// hostOf returns the host of an engine's address. "": the address is a socket on this host.
func hostOf(address string) string {
	if u, err := url.Parse(address); err == nil {
		return u.Hostname()
	}
	return ""
}

// newSetup returns a setup for a folder of allocations.
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
