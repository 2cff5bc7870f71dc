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

	"github.com/nusa-scheduler/nusa/global/deadletters"
	"github.com/nusa-scheduler/nusa/global/events"
	"github.com/nusa-scheduler/nusa/global/spares"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/boottime"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/auditsink"
	"github.com/nusa-scheduler/nusa/security/gate"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// Config is everything one global server needs. The zero value of a field
// means the default that its comment names.
type Config struct {
	// Name is the name of this server, unique among the global servers. Default: the host's name.
	Name string
	// DataDir holds the embedded etcd member, and a file with the owner of the directory. It is
	// required when etcd is embedded, and optional otherwise.
	DataDir string
	// GRPCAddr is where the server serves the gRPC API and the regions' streams. Default
	// 127.0.0.1:7600. With port 0 the network chooses a port.
	GRPCAddr string
	// APIAddr and FederationAddr are addresses of further listeners: for operators only, and for
	// regional servers only. Then the listener of GRPCAddr does not accept these. Without an identity
	// each listener accepts everybody. Default: none.
	APIAddr, FederationAddr string
	// HTTPAddr serves the HTTP API, /livez, /readyz and /metrics. Default 127.0.0.1:7601;
	// "-" turns it off.
	HTTPAddr string
	// HTTPOrigins are the origins of pages of other servers that may call the HTTP API.
	HTTPOrigins []string
	// Advertise is the gRPC address by which other global servers reach this server. Default: the
	// address that this server listens on.
	Advertise string
	// Etcd says where the records are stored. It is ignored when Store is set.
	Etcd Etcd
	// Store, when set, is used in place of etcd, for simulations and tests. Run does not close it.
	Store store.Store
	// Socket is the path of a Unix socket for gRPC. Its callers are root and the user of this process,
	// and may do everything. Empty: none.
	Socket string
	// Net opens sockets. Default: the host's network.
	Net network.Net
	// Identity encrypts all gRPC connections, and says who this server is. Default: none, so
	// connections are not encrypted.
	Identity *trust.Source
	// Limits bound the calls of each operator and access token. Default: not bounded.
	Limits gate.Limits
	// Secure lets this server issue its own identity, and those of others, in place of Identity.
	// Default: it does not.
	Secure *Secure
	// Logger gets the logs. Default: slog.Default().
	Logger *slog.Logger
	// Clock returns the time since a fixed moment, which may be any. The clock must continue while
	// the host is suspended. Default: CLOCK_BOOTTIME, by a boottime.Clock.
	Clock func() time.Duration
	// Lease is the duration of a region's lease. Default 15 s.
	Lease time.Duration
	// ReportInterval is how often regions report. Default 5 s.
	ReportInterval time.Duration
	// CheckpointInterval is how often the server stores the latest summaries of a region. Default
	// 30 s.
	CheckpointInterval time.Duration
	// ElectionTTL is how long the election key of an active server remains after the server has
	// died. Default 5 s, but not more than Lease. etcd rounds the TTL up to whole seconds.
	ElectionTTL time.Duration
	// JobsMax bounds the bytes of the records of all jobs, and NamespaceMax those of the jobs of
	// one namespace. The defaults are DefaultJobsMax and DefaultNamespaceMax.
	JobsMax, NamespaceMax int64
	// EndedKept is how long a job that has ended stays in memory, and EndedMost bounds the number
	// of such jobs in memory. After that a job moves to the history. The history has at most
	// HistoryMost jobs, each for at most HistoryAge. The defaults are DefaultEndedKept and so on.
	EndedKept, HistoryAge time.Duration
	// ReservationRetention is how long the record of a reservation that has ended is stored. Default 24 h.
	ReservationRetention time.Duration
	// DeadLetterRetention is how long a dead letter is stored. More open dead letters than DeadLetterAlarm are an
	// alarm; less than 0: there is none. The defaults are deadletters.DefaultRetention and so on.
	DeadLetterRetention time.Duration
	DeadLetterAlarm     int
	// AuditRetention is how long entries of the audit trail are kept, also those of regions. Default
	// state.AuditAge.
	AuditRetention time.Duration
	// EventRetention is how long events are stored, and EventBytes bounds the bytes that they take. The
	// defaults are events.DefaultAge and events.DefaultBytes. A small store keeps less.
	EventRetention time.Duration
	EventBytes     int64
	// Webhooks says which endpoints a webhook may have.
	Webhooks webhook.Policy
	// SpareCommands are the programs that may be provisioners of spares: paths by name.
	SpareCommands map[string]string
	// AuditSink says where entries of the audit trail are also written.
	AuditSink              auditsink.Config
	EndedMost, HistoryMost int
	// Region and Location say where this server is. They are only shown.
	Region   string
	Location *nusav1.Location
	// Version is the version of the build, which System.Info shows.
	Version string
	// Ready is called once, when the server serves, as the active server or as a standby.
	Ready func(Addresses)
}

// featureLevel is the feature level of this server:
//
// 1: the server takes part in the failover of regions.
// 2: the server reads slots that were stored together with the submit of their job.
// 3: the server reads the history of jobs.
// 4: the server begins the runs of schedules.
// 5: the server knows the canaries of rollouts.
// 6: the server knows rollouts in an order of regions.
// 7: the server runs workflows.
// 8: the server divides `parallel` of groups among regions.
// 9: the server knows the outputs of steps of workflows.
// 10: the server begins the runs of workflows with a schedule.
// 11: the server knows steps that run another workflow, and outputs of runs.
// 12: the server stores how many attempts instances have used.
// 13: the server knows the semaphores and the data of steps of workflows.
// 14: the server knows inline workflows, and workflows with `parameterized`.
const featureLevel = state.InlineLevel

// MinLease is the shortest lease of regions that a flag may set. It leaves time for three renewals,
// one a second.
const MinLease = 3 * time.Second

// DefaultLease is the lease of regions when no flag sets one.
const DefaultLease = 15 * time.Second

// DefaultJobsMax and DefaultNamespaceMax are the limits of jobs when no flag sets them.
const DefaultJobsMax, DefaultNamespaceMax = 2 << 30, 1 << 30

// The settings for jobs that have ended when no flag sets them.
const (
	DefaultEndedKept, DefaultHistoryAge  = time.Hour, 30 * 24 * time.Hour
	DefaultEndedMost, DefaultHistoryMost = 10_000, 1_000_000
)

// Etcd says which etcd stores the records.
type Etcd struct {
	// Endpoints are client URLs, or host:port, of an external cluster or of another global server's
	// embedded member. Empty: this server embeds a member.
	Endpoints []string
	// Outside are the credentials for an external cluster.
	Outside store.Outside
	// ClientAddr is where the embedded member serves other global servers, as host:port. Empty: the
	// member serves only on a socket in the data directory, for the user of this process.
	ClientAddr string
	// PeerAddr is where the embedded member serves the other members, as host:port. A single member
	// does not use it. Default 127.0.0.1:7603. With port 0 the network chooses a port.
	PeerAddr string
	// Quota bounds the bytes that the database of the embedded etcd may have in use. Default:
	// store.DefaultQuota.
	Quota int64
	// InitialCluster lists the embedded members, each as "name=host:port" with its peer address.
	// Empty: this member is the only one.
	InitialCluster []string
}

// Addresses are the addresses that a server listens on, with their ports.
type Addresses struct {
	// GRPC is the address of the public API and of the regions' streams.
	GRPC string
	// API and Federation are the addresses of the further listeners, or empty.
	API, Federation string
	// HTTP is the address of health and metrics. It is empty when they are turned off.
	HTTP string
	// EtcdClient is the embedded member's client address, as host:port or unix://PATH. It is empty
	// when etcd is not embedded.
	EtcdClient string
}

// withDefaults returns the Config with the defaults that the comments of its fields name. It checks
// the fields that are set.
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
		c.Clock = boottime.NewClock().Now
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
		{&c.CheckpointInterval, 30 * time.Second},
		{&c.EndedKept, DefaultEndedKept}, {&c.HistoryAge, DefaultHistoryAge}, {&c.AuditRetention, state.AuditAge}, {&c.EventRetention, events.DefaultAge}, {&c.ReservationRetention, 24 * time.Hour}, {&c.DeadLetterRetention, deadletters.DefaultRetention},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
		if *d.field < 0 {
			return c, fmt.Errorf("interval %s: must not be negative", *d.field)
		}
	}
	if c.ElectionTTL == 0 {
		c.ElectionTTL = min(5*time.Second, c.Lease)
	}
	if c.ElectionTTL < 0 {
		return c, fmt.Errorf("interval %s: must not be negative", c.ElectionTTL)
	}
	c.EndedMost, c.HistoryMost = cmp.Or(c.EndedMost, DefaultEndedMost), cmp.Or(c.HistoryMost, DefaultHistoryMost)
	c.EventBytes, c.DeadLetterAlarm = cmp.Or(c.EventBytes, events.DefaultBytes), cmp.Or(c.DeadLetterAlarm, deadletters.DefaultAlarm)
	c.JobsMax, c.NamespaceMax = cmp.Or(c.JobsMax, DefaultJobsMax), cmp.Or(c.NamespaceMax, DefaultNamespaceMax)
	if c.Store == nil && len(c.Etcd.Endpoints) == 0 && c.DataDir == "" {
		return c, errors.New("data directory: required, since etcd is embedded; or name etcd endpoints")
	}
	if err := errors.Join(c.Etcd.Outside.Check(), spares.CheckPrograms(c.SpareCommands)); err != nil {
		return c, err
	}
	if err := c.AuditSink.Check(); err != nil {
		return c, fmt.Errorf("syslog for the audit trail: %w", err)
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
