package global

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Config is everything one global server needs. The zero value of a field
// means the default that its comment names.
type Config struct {
	// Name of this server, unique among the global servers. Default: the host
	// name.
	Name string
	// DataDir holds the embedded etcd member and the file that says whose
	// directory it is. Required with Etcd embedded, otherwise optional.
	DataDir string
	// GRPCAddr is where the gRPC API and the regions' streams are served.
	// Default 127.0.0.1:7600; port 0 lets the network choose.
	GRPCAddr string
	// HTTPAddr serves /livez, /readyz and /metrics. Default 127.0.0.1:7601;
	// "-" turns it off.
	HTTPAddr string
	// Advertise is the gRPC address by which other global servers reach this
	// one. Default: the address it listens on.
	Advertise string
	// Etcd says where the records are stored. Ignored when Store is set.
	Etcd Etcd
	// Store, when set, is used in place of etcd (simulation, tests) and is not
	// closed by Run.
	Store store.Store
	// Net opens sockets. Default: the host's network.
	Net network.Net
	// Logger gets the logs. Default: slog.Default().
	Logger *slog.Logger
	// Clock returns the time since any fixed moment, on a clock that continues
	// while the host is suspended. Default: CLOCK_BOOTTIME.
	Clock func() time.Duration
	// Lease is the duration of a region's lease. Default 15 s.
	Lease time.Duration
	// ReportInterval is how often regions report. Default 5 s.
	ReportInterval time.Duration
	// CheckpointInterval is how often the latest summaries of a region are
	// stored. Default 30 s.
	CheckpointInterval time.Duration
	// ElectionTTL is how long the election key of an active server remains after
	// the server has died. Default 5 s; etcd rounds up to whole seconds.
	ElectionTTL time.Duration
	// JobsMax and NamespaceMax are the most bytes of the records of jobs, in all and in one namespace.
	// Defaults DefaultJobsMax and DefaultNamespaceMax.
	JobsMax, NamespaceMax int64
	// Region and Location say where this server stands; informational.
	Region   string
	Location *nusav1.Location
	// Version of the build, shown by System.Info.
	Version string
	// Ready is called once, when the server serves (active or not).
	Ready func(Addresses)
}

// featureLevel is the feature level of this server. 1: it takes part in the failover of
// regions. 2: it reads slots that were stored with the submit of their job.
const featureLevel = 2

// MinLease is the shortest lease of regions that a flag may set: three renewals, a second
// each.
const MinLease = 3 * time.Second

// DefaultLease is the lease of regions without a flag.
const DefaultLease = 15 * time.Second

// DefaultJobsMax and DefaultNamespaceMax bound the jobs without a flag.
const DefaultJobsMax, DefaultNamespaceMax = 2 << 30, 1 << 30

// Etcd says which etcd stores the records.
type Etcd struct {
	// Endpoints are client URLs or host:port of an external cluster or of
	// another global server's embedded member. Empty = embed a member here.
	Endpoints []string
	// ClientAddr is where the embedded member serves other global servers, host:port,
	// without a password. Empty = only on a socket in the data directory, for the user of
	// this process.
	ClientAddr string
	// PeerAddr is where the embedded member serves the other members, host:port. Default
	// 127.0.0.1:7603; port 0 chooses.
	PeerAddr string
	// Quota is the most bytes in use of the embedded etcd's database. Default
	// store.DefaultQuota.
	Quota int64
	// InitialCluster lists the embedded members, "name=host:port" of their
	// peer addresses. Empty = this member alone.
	InitialCluster []string
}

// Addresses are the addresses that a server listens on, with their ports.
type Addresses struct {
	// GRPC is the public API and the regions' streams.
	GRPC string
	// HTTP is health and metrics; empty when turned off.
	HTTP string
	// EtcdClient is the embedded member's client address, host:port or unix://PATH; empty
	// without a member.
	EtcdClient string
}

// withDefaults fills in the defaults that the comments of Config name, and checks
// the rest.
func (c Config) withDefaults() (Config, error) {
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return c, fmt.Errorf("name of the server: %w; give one", err)
		}
		c.Name = host
	}
	if c.Net.Listen == nil {
		c.Net = network.Host()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Clock == nil {
		c.Clock = bootClock
	}
	for _, d := range []struct {
		field *string
		value string
	}{
		{&c.GRPCAddr, "127.0.0.1:7600"}, {&c.HTTPAddr, "127.0.0.1:7601"},
		{&c.Etcd.PeerAddr, "127.0.0.1:7603"}, {&c.Version, serve.Version},
	} {
		if *d.field == "" {
			*d.field = d.value
		}
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.Lease, DefaultLease}, {&c.ReportInterval, 5 * time.Second},
		{&c.CheckpointInterval, 30 * time.Second}, {&c.ElectionTTL, 5 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
		if *d.field < 0 {
			return c, fmt.Errorf("interval %s: must not be negative", *d.field)
		}
	}
	c.JobsMax, c.NamespaceMax = cmp.Or(c.JobsMax, DefaultJobsMax), cmp.Or(c.NamespaceMax, DefaultNamespaceMax)
	if c.Store == nil && len(c.Etcd.Endpoints) == 0 && c.DataDir == "" {
		return c, errors.New("data directory: required, since etcd is embedded; or name etcd endpoints")
	}
	if c.Advertise != "" {
		if _, _, err := net.SplitHostPort(c.Advertise); err != nil {
			return c, fmt.Errorf("advertised address: %w", err)
		}
	}
	if c.DataDir != "" {
		abs, err := filepath.Abs(c.DataDir)
		if err != nil {
			return c, fmt.Errorf("data directory: %w", err)
		}
		c.DataDir = abs
	}
	return c, nil
}

// bootClock reads CLOCK_BOOTTIME, which continues while the host is suspended.
func bootClock() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Only kernels older than 2.6.39 lack CLOCK_BOOTTIME.
		panic("read CLOCK_BOOTTIME: " + err.Error())
	}
	return time.Duration(ts.Nano())
}
