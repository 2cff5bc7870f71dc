package regional

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/nusa-scheduler/nusa/internal/boottime"
	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/gossip"
	"github.com/nusa-scheduler/nusa/regional/quorum"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/tasks"
	"github.com/nusa-scheduler/nusa/security/auditsink"
	"github.com/nusa-scheduler/nusa/security/gate"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/member"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// ErrConfig marks the errors of Run that come from the configuration, not from
// the machine.
var ErrConfig = errors.New("invalid configuration")

// Config is the configuration of a regional server. The zero value of a field
// that has a default stands for the default.
type Config struct {
	// Region defines the region. Its name is required and must be the same on every
	// server of the region.
	Region *nusav1.RegionDefinition
	// Name identifies this server within the region: 1..63 of [a-zA-Z0-9._-].
	Name string
	// DataDir holds the Raft log, snapshots and the server's identity. It is created
	// with mode 0700, and not used with InMemory.
	DataDir string

	// The server listens on these addresses, each "host:port". With port 0 the operating
	// system chooses the port. The defaults are the ports 7610 to 7614 of 127.0.0.1. With
	// HTTPAddr "-" the server serves no HTTP.
	GRPCAddr   string
	RaftAddr   string
	GossipAddr string
	ProbeAddr  string
	HTTPAddr   string
	// HTTPOrigins are the origins of pages of other servers that may call the HTTP API.
	HTTPOrigins []string
	// APIAddr and AgentAddr are addresses of further listeners: for operators only, and for the
	// region's agents only. Then the listener of GRPCAddr does not accept these. Without an identity
	// each listener accepts everybody. Default: none.
	APIAddr, AgentAddr string
	// Advertise is the host under which others reach the ports above. The default is the
	// host of GRPCAddr. Advertise is required when that host is a wildcard.
	Advertise string

	// Join lists gossip addresses of any servers of the region. The server's own address
	// may be in the list. The server tries the addresses until one of them responds.
	Join []string
	// BootstrapExpect is how many servers must see one another before a new
	// Raft group is formed. Default 1. Servers of an existing group ignore it.
	BootstrapExpect int
	// Global lists gRPC addresses of global servers. Empty: the region has no global tier.
	Global []string

	// Socket is the path of a Unix socket for gRPC. Its callers are root and the user of this process,
	// and may do everything. Empty: none.
	Socket string
	// Net opens sockets. Default network.Host().
	Net network.Net
	// Identity encrypts all connections of gRPC and Raft, and says who this server is.
	// Default: none, so connections are not encrypted.
	Identity *trust.Source
	// Limits bound the calls of each operator and access token. Default: not bounded.
	Limits gate.Limits
	// Lives are the lives of the certificates that this server issues, by kind. A kind without
	// an entry has its default.
	Lives map[identity.Kind]time.Duration
	// Logger receives structured logs. Default: none.
	Logger *slog.Logger
	// Clock reads a monotonic clock that runs through suspend. Its zero may be any time.
	// Default CLOCK_BOOTTIME.
	Clock func() time.Duration
	// GossipKeys encrypt gossip, each with 16, 24 or 32 bytes. This server sends with the first key,
	// and refuses what is encrypted with none of them. GossipKeyFile is a file of keys instead, which
	// is read again when it changes. Neither: no encryption.
	GossipKeys    [][]byte
	GossipKeyFile string

	// Raft sets how fast the Raft group elects a leader.
	Raft RaftTiming
	// RaftLog is the kind of store of the Raft log: etcd's write-ahead log (quorum.WAL, the
	// default) or raft-boltdb (quorum.BoltDB). At its start the server converts a data
	// directory of the other kind.
	RaftLog quorum.LogKind
	// NodeLease is how long a node may be silent before the node is lost. An agent sends
	// three heartbeats in that time. Default 15 s, at least 100 ms.
	NodeLease time.Duration
	// StatsInterval is how often agents send statistics. Default 5 s.
	StatsInterval time.Duration
	// ReportInterval is how often the master reports to the global tier.
	// Default 5 s.
	ReportInterval time.Duration
	// DeadServerAfter is how long a failed server stays a member of the Raft group
	// when no replacement joins. Default 72 h.
	DeadServerAfter time.Duration
	// ProbeKeys authenticate latency probes between the regions of a federation. Each key
	// has at least 16 bytes. This server sends with the first key and accepts packets with
	// any of the keys. So a key is replaced in three steps: add the new key as the second
	// one everywhere, make the new key the first, remove the old key. Empty: the server
	// accepts all probes.
	ProbeKeys [][]byte
	// Orders are the roots and keys that the federation wants this server to have. The server
	// keeps them up to date. It may be nil.
	Orders *member.Orders
	// GossipKeysGiven: the federation writes GossipKeyFile.
	GossipKeysGiven bool
	// ProbeRate bounds how many latency probes the master sends in a second. Default 100.
	ProbeRate int

	// HistorySeries and HistoryBytes bound the metrics history of this server. The history
	// is a file in the data directory. It holds what the server measured while it was the
	// master: edges, nodes and pools, for 31 days. A busy node takes about 270 KB in 31
	// days. The defaults are 20,000 series and 3 GiB. The least size is 4 MiB. With a
	// negative HistoryBytes the server has no history.
	HistorySeries int
	HistoryBytes  int64

	// TaskHistory bounds the history of tasks of this server: a file in the data directory.
	TaskHistory tasks.Limits

	// AuditRetention is how long entries of the region's audit trail are kept. Entries that the
	// global tier has not stored yet are kept longer. Default 30 days, at least a minute.
	AuditRetention time.Duration
	// AuditSink says where the master also writes the entries of the trail.
	AuditSink auditsink.Config

	// InMemory holds Raft's log in memory, for simulations only. Such a server must never
	// start again after it ended.
	InMemory bool
	// Version is the version of the build. Default "dev".
	Version string
	// Ready is called once, when every listener is open and the API is served. The
	// region may have no master yet.
	Ready func(Addresses)
}

// RaftTiming sets how fast the group notices a lost leader. The zero value is for servers
// with round trips of a few milliseconds: heartbeat and election 1 s, leader lease 500 ms.
// For servers on one machine there is FastRaft.
type RaftTiming struct {
	// Heartbeat is the time without a heartbeat after which a follower becomes a
	// candidate.
	Heartbeat time.Duration
	// Election is the time after which a candidate tries again.
	Election time.Duration
	// LeaderLease is the time after which a leader without a quorum steps down. It is at
	// most Heartbeat.
	LeaderLease time.Duration
	// Commit is how long a follower's commit index may lag while nothing is written.
	// Default 50 ms.
	Commit time.Duration
}

// FastRaft returns the timing for servers on one machine. A single server leads within
// about 200 ms. A group notices a dead leader within about half a second.
func FastRaft() RaftTiming {
	return RaftTiming{
		Heartbeat:   100 * time.Millisecond,
		Election:    100 * time.Millisecond,
		LeaderLease: 100 * time.Millisecond,
		Commit:      5 * time.Millisecond,
	}
}

// Addresses are the addresses of a running server, as others reach it.
type Addresses struct {
	GRPC   string
	Raft   string
	Gossip string
	Probe  string
	// API and Agents are the addresses of the further listeners, or empty.
	API, Agents string
	// HTTP is empty when the server serves no HTTP.
	HTTP string
}

// Run runs one regional server until ctx ends or the first fatal error. When Run returns,
// everything that it started has ended. Run returns nil after ctx ended, an error that
// wraps ErrConfig when cfg is invalid, and otherwise the first failure.
func Run(ctx context.Context, cfg Config) error {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return err
	}
	return run(ctx, cfg)
}

// minHistory is the least size of the history's file.
const minHistory = 4 << 20

var serverName = lazyregexp.New(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)

func (c Config) withDefaults() Config {
	str := func(p *string, d string) {
		if *p == "" {
			*p = d
		}
	}
	dur := func(p *time.Duration, d time.Duration) {
		if *p == 0 {
			*p = d
		}
	}
	str(&c.GRPCAddr, "127.0.0.1:7610")
	str(&c.RaftAddr, "127.0.0.1:7611")
	str(&c.GossipAddr, "127.0.0.1:7612")
	str(&c.ProbeAddr, "127.0.0.1:7613")
	str(&c.HTTPAddr, "127.0.0.1:7614")
	str(&c.Version, "dev")
	if c.Advertise == "" {
		c.Advertise, _, _ = net.SplitHostPort(c.GRPCAddr)
	}
	if c.BootstrapExpect == 0 {
		c.BootstrapExpect = 1
	}
	if c.Net.Listen == nil {
		c.Net = network.Host()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = boottime.Now
	}
	c.RaftLog = cmp.Or(c.RaftLog, quorum.WAL)
	dur(&c.Raft.Heartbeat, time.Second)
	dur(&c.Raft.Election, c.Raft.Heartbeat)
	dur(&c.Raft.LeaderLease, c.Raft.Heartbeat/2)
	dur(&c.Raft.Commit, 50*time.Millisecond)
	dur(&c.NodeLease, 15*time.Second)
	dur(&c.StatsInterval, 5*time.Second)
	dur(&c.ReportInterval, 5*time.Second)
	dur(&c.DeadServerAfter, 72*time.Hour)
	dur(&c.AuditRetention, state.AuditAge)
	if c.ProbeRate == 0 {
		c.ProbeRate = 100
	}
	return c
}

// validate checks a configuration whose defaults are set. Each error names the field.
func (c Config) validate() error {
	bad := func(field, format string, args ...any) error {
		return fmt.Errorf("%w: %s: %s", ErrConfig, field, fmt.Sprintf(format, args...))
	}
	if c.Region.GetName() == "" {
		return bad("region.name", "must be set")
	}
	if err := job.ValidateRegion(c.Region); err != nil {
		return bad("region", "%v", err)
	}
	if !serverName().MatchString(c.Name) {
		return bad("name", "%q is not 1..63 of [a-zA-Z0-9._-] starting with a letter or digit", c.Name)
	}
	if c.DataDir == "" && !c.InMemory {
		return bad("data_dir", "must be set")
	}
	if err := c.RaftLog.Check(); err != nil {
		return bad("raft_log", "%v", err)
	}
	for _, a := range [][2]string{
		{"grpc_addr", c.GRPCAddr}, {"raft_addr", c.RaftAddr}, {"gossip_addr", c.GossipAddr}, {"probe_addr", c.ProbeAddr},
	} {
		if _, _, err := net.SplitHostPort(a[1]); err != nil {
			return bad(a[0], "%q is not host:port", a[1])
		}
	}
	for _, a := range c.Global {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return bad("global", "%q is not host:port", a)
		}
	}
	if ip := net.ParseIP(c.Advertise); c.Advertise == "" || (ip != nil && ip.IsUnspecified()) {
		return bad("advertise", "must be set when the server listens on every address (%q)", c.GRPCAddr)
	}
	if c.BootstrapExpect < 1 || c.BootstrapExpect > 9 {
		return bad("bootstrap_expect", "%d is not 1..9", c.BootstrapExpect)
	}
	if err := c.checkGossipKeys(); err != nil {
		return bad("gossip_key", "%v", err)
	}
	for i, key := range c.ProbeKeys {
		if len(key) < 16 {
			return bad("probe_key", "key %d has %d bytes, must have at least 16", i+1, len(key))
		}
	}
	own := identity.Rules{{Kind: identity.Server, Region: c.Region.GetName(), Name: c.Name}}
	if err := c.Identity.Require("nusa regional --region "+c.Region.GetName()+" --name "+c.Name, own); err != nil {
		return bad("identity", "%v", err)
	}
	if c.NodeLease < 100*time.Millisecond {
		return bad("node_lease", "%v is below 100ms", c.NodeLease)
	}
	if c.StatsInterval < 0 || c.ReportInterval < 0 {
		return bad("stats_interval, report_interval", "must not be negative")
	}
	if err := c.AuditSink.Check(); err != nil {
		return bad("audit_syslog", "%v", err)
	}
	if c.AuditRetention < time.Minute {
		return bad("audit_retention", "%v is below 1m", c.AuditRetention)
	}
	if c.HistorySeries < 0 {
		return bad("history_series", "%d must not be negative", c.HistorySeries)
	}
	if c.HistoryBytes > 0 && c.HistoryBytes < minHistory {
		return bad("history_bytes", "%d is below %d", c.HistoryBytes, minHistory)
	}
	if err := c.TaskHistory.Check(); err != nil {
		return bad("task_history", "%v", err)
	}
	if c.ProbeRate < 0 || c.ProbeRate > 10_000 {
		return bad("probe_rate", "%d is not 1..10000", c.ProbeRate)
	}
	return nil
}

// checkGossipKeys returns an error if gossip cannot use the keys.
func (c Config) checkGossipKeys() error {
	switch {
	case c.GossipKeyFile != "":
		_, err := gossip.ReadKeys(c.GossipKeyFile)
		return err
	case len(c.GossipKeys) > 0:
		return gossip.CheckKeys(c.GossipKeys)
	}
	return nil
}
