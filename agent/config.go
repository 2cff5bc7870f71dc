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

// Config of an agent. Zero values mean the default that is named.
type Config struct {
	// Region it belongs to. Required.
	Region string
	// Name for people. Default: the host name.
	Name string
	// Description for people, at most 256 bytes.
	Description string
	// DataDir holds the local store and the allocations' folders (0700), of
	// this agent alone. Required.
	DataDir string
	// Servers are gRPC addresses of regional servers; one that answers is
	// enough, the others are learned. Required.
	Servers []string
	// HTTPAddr serves /livez, /readyz and /metrics. Default "127.0.0.1:7620";
	// "-" serves no HTTP.
	HTTPAddr string
	// Version of the build, for people. Default: serve.Version.
	Version string

	// Pool of the node. Default "default".
	Pool   string
	Labels map[string]string
	// Capacity replaces what the host has, where not 0; Reserve is taken off
	// in any case.
	Capacity, Reserve driver.Resources
	// SharedMachine names the machine when several agents share it; Share is
	// this agent's part of it, 0..1. Default: alone, 1.
	SharedMachine string
	Share         float64
	// InstanceQuota bounds allocations at a time; 0 = unlimited.
	InstanceQuota int
	// PortMin..PortMax are the dynamic ports, ends included. Default
	// 20000..32000.
	PortMin, PortMax int
	// MaxRetainedBytes bounds, in bytes, what is kept of allocations that have ended,
	// output and working folders; the oldest goes first. Default 1 GiB. What runs
	// is bounded by its job file. MaxRetainedFolders bounds the number of these working
	// folders. Default 500.
	MaxRetainedBytes   int64
	MaxRetainedFolders int
	// ControlPlane: this node also runs servers and takes no work unless told.
	ControlPlane bool
	// LeaveOnShutdown stops every task at the end and says goodbye, so that the
	// work is moved at once. Without it tasks go on and the next start adopts
	// them.
	LeaveOnShutdown bool
	// PauseOnShutdown stops every task at the end and tells nobody; the next
	// start runs them anew, as the same allocations and without counting it as
	// a failure or a restart. For a federation that ends and starts as a whole.
	PauseOnShutdown bool
	// RemoveOnShutdown removes the runs of all tasks at the end, with their output and
	// containers. It needs PauseOnShutdown, and is for a data directory that is deleted
	// afterwards: nothing else would ever remove the containers.
	RemoveOnShutdown bool

	// VolumesAllow are the host's folders below which jobs may have volumes.
	// Default: none.
	VolumesAllow []string
	// ArtifactsAllow are prefixes (10.0.0.0/8) of addresses beyond the public ones
	// that jobs may fetch artifacts from, and folders for file://. Default: none.
	ArtifactsAllow []string
	// ArtifactsMax bounds the artifacts of a task, in bytes, fetched and unpacked.
	// Default 1 GiB.
	ArtifactsMax int64
	// SecretsDir holds the secrets that jobs may have, as NAMESPACE/NAME, readable
	// by their owner alone. Default: none.
	SecretsDir string
	// ProcessUser is whom processes run as unless their job says another one of
	// ProcessUsers, both as USER or USER:GROUP; they have no further groups.
	// Default: the agent's own, and any with all its groups.
	ProcessUser  string
	ProcessUsers []string

	// Net is how it reaches sockets. Default: the host's.
	Net network.Net
	// Credentials for the regional servers. Default: none (loopback only).
	Credentials credentials.TransportCredentials
	// Logger. Default: discards.
	Logger *slog.Logger
	// Clock counts leases. Default: CLOCK_BOOTTIME; the process driver knows no
	// other.
	Clock func() time.Duration
	// ReleaseMemory: the process belongs to this agent alone. At rest it returns unused
	// memory to the kernel.
	ReleaseMemory bool
	// BootID tells boots of the host apart. Default: the kernel's.
	BootID string
	// DockerHost is the Docker engine's address. Default: docker.DefaultHost,
	// where there is such a socket or was one; "off" = no driver docker.
	DockerHost string
	// DockerAuth is a file with passwords of registries, in the form of Docker's
	// config.json, readable by its owner alone. Default: none.
	DockerAuth string
	// DockerPrivileged lets jobs run privileged containers.
	DockerPrivileged bool
	// Plugins are further drivers: the path of an executable by the driver's name,
	// at most 16 (package agent/driver/plugin).
	Plugins map[string]string
	// Drivers by name, beside the plugins. Default: process, with SupervisorArgv,
	// docker and incus.
	Drivers map[string]driver.Driver
	// Incus is how the driver incus reaches its daemon: the absolute path of a
	// socket, https://…, or "off" for no such driver. Default: the host's own
	// socket, where there is or was one. IncusCert, IncusKey and IncusCA are files for
	// https, in PEM; without IncusCA the system's authorities are trusted.
	Incus, IncusCert, IncusKey, IncusCA string
	// IncusPrivileged lets jobs have any key and device of Incus, of which some are
	// root on the host. IncusProfiles are the daemon's profiles that jobs may name;
	// the one named default they may in any case.
	IncusPrivileged bool
	IncusProfiles   []string
	// SupervisorArgv is how the process driver starts a supervisor. Default:
	// slim.Argv below DataDir, else this executable with "supervise".
	SupervisorArgv []string
	// Facts about the host; agents of one process may share a source.
	// Default: facts.Host().
	Facts facts.Source
	// Ready is called once, when the local store is open, tasks are adopted and
	// HTTP serves; not necessarily connected.
	Ready func(Addresses)

	// setup makes tasks ready.
	setup *setup.Setup
	// closeDrivers ends the default drivers and the plugins; driversChanged tells
	// that a driver would say otherwise about itself.
	closeDrivers   func()
	driversChanged <-chan struct{}
	// remoteHosts is the host that has the ports of a driver's tasks, where its
	// engine is reached over the network.
	remoteHosts map[string]string
}

// allocsDir is the folder of the data directory that holds the allocations'.
const allocsDir = "allocs"

// Errors of a configuration; each text names the flag.
var errConfig = errors.New("agent configuration")

// withDefaults checks the configuration and fills in its values.
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
	if c.DataDir, err = filepath.Abs(c.DataDir); err != nil {
		return c, fmt.Errorf("%w: --data-dir: %w", errConfig, err)
	}
	if c.Name == "" {
		if c.Name, err = os.Hostname(); err != nil {
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

// withParts fills in what is not a value. The data directory is this agent's.
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
	if c.setup, err = c.newSetup(filepath.Join(c.DataDir, allocsDir)); err != nil {
		return c, err
	}
	if len(c.Drivers) > 0 {
		c.Drivers, c.closeDrivers = maps.Clone(c.Drivers), func() {}
		return c.withPlugins()
	}
	argv := c.SupervisorArgv
	if len(argv) == 0 {
		if argv, err = supervisorArgv(c.DataDir, c.Logger); err != nil {
			return c, err
		}
	}
	users, err := process.ParseUsers(c.ProcessUser, c.ProcessUsers)
	if err != nil {
		return c, fmt.Errorf("%w: %w", errConfig, err)
	}
	p := process.New(process.Config{Dir: filepath.Join(c.DataDir, "process"), SupervisorArgv: argv, Users: users, Hide: c.DataDir})
	c.Drivers, c.closeDrivers, c.remoteHosts = map[string]driver.Driver{"process": p}, p.Close, map[string]string{}
	if c, err = c.withDocker(); err != nil {
		return c, err
	}
	if c, err = c.withIncus(argv); err != nil {
		return c, err
	}
	return c.withPlugins()
}

// withDocker adds the driver docker, where there is an engine or was one: what
// runs there has to be adopted, also when the engine starts after the agent.
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

// withIncus adds the driver incus, where there is a daemon or was one, as
// withDocker does. argv starts a supervisor.
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

// hostOf is the host in an engine's address, "" for a socket on this one.
func hostOf(address string) string {
	if u, err := url.Parse(address); err == nil {
		return u.Hostname()
	}
	return ""
}

// newSetup makes tasks ready below a folder of allocations.
func (c Config) newSetup(dir string) (*setup.Setup, error) {
	s, err := setup.New(setup.Config{Dir: dir, Private: []string{c.DataDir, c.SecretsDir, mounts.Stages}, VolumesAllow: c.VolumesAllow,
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
