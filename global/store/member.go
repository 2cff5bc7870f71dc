package store

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/nusa-scheduler/nusa/security/trust"
)

const (
	// snapshotEntries is the number of transactions after which the member stores how far its
	// database has come. A member that starts reads the transactions after that from its log, and
	// holds them in memory: at most snapshotEntries. A snapshot costs a few writes to disk.
	snapshotEntries = 300
	// logFiles is the number of files of the log that stay although the database has what they
	// contain. A member reads all files at its start, to find the latest snapshot.
	logFiles = 1
	// catchUpEntries is how many transactions another member may be behind without getting the
	// whole database.
	catchUpEntries = 500
)

// member is an etcd member that runs in this process.
type member struct {
	*embed.Etcd
	socket *socket
	// peers and clients are the ports of the member. Each is nil if there is no such port.
	peers, clients *front
}

// startMember starts an etcd member in this process, and waits until it is ready.
func startMember(ctx context.Context, cfg EtcdConfig, log slogCore) (*member, error) {
	ec, err := memberConfig(cfg, log)
	if err != nil {
		return nil, err
	}
	m := &member{}
	err = m.open(ctx, cfg, ec)
	if err == nil {
		err = m.socket.protect()
	}
	if err == nil {
		if m.peers != nil {
			m.peers.serve(m.socket.peer)
		}
		if m.clients != nil {
			m.clients.serve(m.socket.listen.Path)
		}
		err = m.awaitReady(ctx)
	}
	if err != nil {
		m.close()
		return nil, fmt.Errorf("start the embedded etcd member: %w", err)
	}
	return m, nil
}

// open opens the ports and the sockets, and starts the member.
func (m *member) open(ctx context.Context, cfg EtcdConfig, ec *embed.Config) error {
	var err error
	m.socket, err = openSocket(cfg.DataDir)
	if err != nil {
		return err
	}
	if len(cfg.InitialCluster) > 1 { // a single member has no port
		err = m.openPeers(ctx, cfg, cfg.PeerAddr)
	}
	if err == nil && cfg.ClientAddr != "" {
		m.clients, err = openFront(ctx, cfg.ClientAddr, "--etcd-client-addr", cfg.Identity, "h2", "http/1.1")
	}
	if err != nil {
		return err
	}
	ec.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: m.socket.peer}}
	ec.ListenClientUrls = []url.URL{m.socket.listen}
	ec.AdvertiseClientUrls = append(ec.AdvertiseClientUrls, m.socket.advertised)
	m.Etcd, err = embed.StartEtcd(ec)
	if err != nil {
		return err
	}
	err = checkURLs(m.Server.Cluster().Members(), cfg.Identity != nil)
	if err != nil || m.peers != nil {
		return err
	}
	return m.openStored(ctx, cfg)
}

// checkURLs returns an error if the members would dial each other with TLS and accept only
// connections without, or the other way round. etcd dials the addresses that it has stored, and
// nothing changes these without a majority of members that reach each other.
func checkURLs(members []*membership.Member, encrypted bool) error {
	if len(members) < 2 {
		return nil
	}
	wrong, fault, instead := "http://", "was made without TLS, so with identities the members do not reach each other",
		"stop all global servers, and restore a snapshot with https:// addresses on each, as docs/operating.md says"
	if !encrypted {
		wrong, fault, instead = "https://", "was made with TLS, so without identities the members do not reach each other",
			"start each global server with its identity"
	}
	for _, m := range members {
		for _, u := range m.PeerURLs {
			if strings.HasPrefix(u, wrong) {
				return fmt.Errorf("etcd member %s (%s) %s: %s", cmp.Or(m.Name, m.ID.String()), u, fault, instead)
			}
		}
	}
	return nil
}

func (m *member) openPeers(ctx context.Context, cfg EtcdConfig, addr string) (err error) {
	m.peers, err = openFront(ctx, addr, "--etcd-peer-addr", cfg.Identity, "http/1.1")
	return err
}

// openStored opens the port for other members that the data directory knows and the configuration
// does not name. The address is the one that those members know.
func (m *member) openStored(ctx context.Context, cfg EtcdConfig) error {
	own := m.Server.Cluster().Member(m.Server.MemberID())
	if len(m.Server.Cluster().Members()) < 2 || own == nil || len(own.PeerURLs) == 0 {
		return nil
	}
	at, err := url.Parse(own.PeerURLs[0])
	if err != nil {
		return fmt.Errorf("stored peer address %q: %w", own.PeerURLs[0], err)
	}
	return m.openPeers(ctx, cfg, at.Host)
}

func (m *member) awaitReady(ctx context.Context) error {
	select {
	case <-m.Server.ReadyNotify():
		return nil
	case err := <-m.Err():
		return err
	case <-m.Server.StopNotify():
		return errors.New("the member stopped")
	case <-ctx.Done():
		return fmt.Errorf("%w: not ready in time; are the other members of the initial cluster up?", ErrNoQuorum)
	}
}

// clientAddr returns the configured address for clients, or else the address of the socket.
func (m *member) clientAddr() string {
	if m.clients != nil {
		return m.clients.addr()
	}
	return "unix://" + m.socket.path
}

func (m *member) close() {
	m.peers.close()
	m.clients.close()
	if m.Etcd != nil {
		m.stop()
	}
	m.socket.close()
}

// stop ends the member. Close would wait for ever for the servers of a member that was never ready,
// because these begin once it is ready, or stops.
func (m *member) stop() {
	select {
	case <-m.Server.ReadyNotify():
	default:
		m.Server.HardStop()
	}
	m.Close()
}

// peerTLS returns how the member dials other members. etcd compares one DNS name, so all global
// servers share one. etcd reads the certificate for each connection, and the roots at its start.
func peerTLS(cfg EtcdConfig) (transport.TLSInfo, error) {
	if cfg.Identity == nil {
		return transport.TLSInfo{}, nil
	}
	name, err := cfg.Identity.RequireTier()
	if err != nil && len(cfg.InitialCluster) > 0 {
		return transport.TLSInfo{}, err
	}
	return transport.TLSInfo{
		CertFile: cfg.Identity.Path(trust.CertFile), KeyFile: cfg.Identity.Path(trust.KeyFile),
		TrustedCAFile: cfg.Identity.Path(trust.RootsFile), ServerName: name, MinVersion: tls.VersionTLS13,
	}, nil
}

func memberConfig(cfg EtcdConfig, log slogCore) (*embed.Config, error) {
	ec := embed.NewConfig()
	ec.Name = cfg.Name
	ec.Dir = cfg.DataDir
	ec.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(log))
	ec.ListenClientUrls, ec.AdvertiseClientUrls = nil, nil
	scheme := "http"
	if cfg.Identity != nil {
		scheme = "https"
	}
	if cfg.ClientAddr != "" {
		client, err := url.Parse(scheme + "://" + cfg.ClientAddr)
		if err != nil {
			return nil, fmt.Errorf("etcd client address %q: %w", cfg.ClientAddr, err)
		}
		ec.AdvertiseClientUrls = []url.URL{*client}
	}
	peer, err := url.Parse(scheme + "://" + cfg.PeerAddr)
	if err != nil {
		return nil, fmt.Errorf("etcd peer address %q: %w", cfg.PeerAddr, err)
	}
	ec.AdvertisePeerUrls = []url.URL{*peer}
	ec.PeerTLSInfo, err = peerTLS(cfg)
	if err != nil {
		return nil, err
	}
	ec.EnableGRPCGateway = false
	ec.MaxTxnOps = memberTxnOps
	// Old revisions are never read, because a watch that is too far behind lists again.
	ec.AutoCompactionMode, ec.AutoCompactionRetention = "periodic", "10m"
	ec.QuotaBackendBytes = hardQuota(cfg.DataDir, cfg.Quota)
	// Each entry may have MaxTxnBytes.
	ec.SnapshotCount, ec.SnapshotCatchUpEntries = snapshotEntries, catchUpEntries
	ec.MaxWalFiles = logFiles
	if len(cfg.InitialCluster) == 0 {
		ec.InitialCluster = ec.InitialClusterFromName(ec.Name)
		// A single member elects itself, so it need not wait a second for others.
		ec.TickMs, ec.ElectionMs = 20, 200
		ec.SnapshotCatchUpEntries = 1 // no other member has to catch up
		return ec, nil
	}
	members := make([]string, len(cfg.InitialCluster))
	for i, m := range cfg.InitialCluster {
		name, addr, ok := strings.Cut(m, "=")
		if !ok || name == "" || addr == "" {
			return nil, fmt.Errorf("etcd initial cluster: %q is not name=host:port", m)
		}
		if !strings.Contains(addr, "://") {
			addr = scheme + "://" + addr
		}
		members[i] = name + "=" + addr
	}
	ec.InitialCluster = strings.Join(members, ",")
	return ec, nil
}

// slogCore passes zap's warnings and errors to slog, and drops the rest.
type slogCore struct {
	log *slog.Logger
	// closing: the member is being stopped, so the errors that follow are expected.
	closing *atomic.Bool
}

// harmless are errors that etcd logs although it repairs them itself. The storage version cannot be
// updated before the first snapshot of the data directory.
var harmless = []string{"failed to update storage version"}

// Enabled implements zapcore.Core.
func (c slogCore) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel && c.log != nil }

// With implements zapcore.Core.
func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	if c.log == nil {
		return c
	}
	return slogCore{c.log.With(slogArgs(fields)...), c.closing}
}

// Check implements zapcore.Core.
func (c slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write implements zapcore.Core. It logs etcd's warnings as debug details, because the caller of a
// failed operation logs what the failure means.
func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelDebug
	if e.Level >= zapcore.ErrorLevel && !c.closing.Load() && !slices.Contains(harmless, e.Message) {
		level = slog.LevelWarn
	}
	c.log.Log(context.Background(), level, "etcd: "+e.Message, slogArgs(fields)...)
	return nil
}

// Sync implements zapcore.Core.
func (slogCore) Sync() error { return nil }

func slogArgs(fields []zapcore.Field) []any {
	enc := zapcore.NewMapObjectEncoder()
	args := make([]any, 0, 2*len(fields))
	for _, f := range fields {
		f.AddTo(enc)
		if v, ok := enc.Fields[f.Key]; ok {
			args = append(args, f.Key, v)
		}
	}
	return args
}
