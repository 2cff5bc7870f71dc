package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/security/trust"
)

// opTimeout bounds every operation. A store without quorum returns ErrNoQuorum after opTimeout,
// even if the caller's deadline is later.
const opTimeout = 5 * time.Second

// EtcdConfig selects an etcd: the external cluster at Endpoints, or without Endpoints a member that
// is embedded in this process.
type EtcdConfig struct {
	// Name is the name of the embedded member, unique in the cluster.
	Name string
	// DataDir is the data directory of the embedded member.
	DataDir string
	// Endpoints are the addresses of an external cluster, as URLs or host:port.
	Endpoints []string
	// PeerAddr is the peer address of the embedded member, as host:port.
	PeerAddr string
	// ClientAddr is the address, host:port, where the member serves other global servers, in addition
	// to its socket. Empty: the member serves only on its socket.
	ClientAddr string
	// Identity encrypts the ports of the embedded member, and the connections to that of another
	// global server. Only global servers are accepted. Nil: no encryption.
	Identity *trust.Source
	// Outside are the credentials for the external cluster.
	Outside Outside
	// Quota bounds the bytes that the embedded member's database may have in use; 0: DefaultQuota.
	Quota int64
	// InitialCluster lists all embedded members, each as "name=host:port". Empty: only this member.
	InitialCluster []string
	// Dial opens connections to Endpoints. Nil: over the host's network.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Logger receives etcd's warnings and errors.
	Logger *slog.Logger
}

// Etcd is a Store on etcd.
type Etcd struct {
	client *clientv3.Client
	member *member // nil for an external cluster
	direct *direct // writes to member, nil without one
	cancel context.CancelFunc
	ctx    context.Context
	close  sync.Once
	// closing: etcd's errors are expected from now on, and are not logged as warnings.
	closing atomic.Bool

	// revisions maps etcd's own revisions to those that callers see.
	revisions atomic.Pointer[revisions]

	mu     sync.Mutex
	leases map[time.Duration]sharedLease
	// reads is, by etcd's own revision, the number of lists that read the revision.
	reads map[int64]int
	// compacted is the latest of etcd's own revisions up to which Compact drops the history.
	compacted int64
	// quota is EtcdConfig.Quota.
	quota int64
	// dial connects to one endpoint of an external cluster.
	dial func(endpoint string) (*clientv3.Client, error)
}

// sharedLease is the lease of all keys with the same TTL. A lease for each key would cost one more
// commit for each key.
type sharedLease struct {
	id      clientv3.LeaseID
	granted time.Time
}

// OpenEtcd starts the embedded member, if there is one, and connects. It waits until the store
// responds or ctx ends.
func OpenEtcd(ctx context.Context, cfg EtcdConfig) (*Etcd, error) {
	e := &Etcd{leases: map[time.Duration]sharedLease{}, reads: map[int64]int{}, quota: cmp.Or(cfg.Quota, DefaultQuota)}
	cfg.Quota = e.quota
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.revisions.Store(&revisions{})
	var err error
	log := slogCore{cfg.Logger, &e.closing}
	if len(cfg.Endpoints) == 0 {
		e.member, err = startMember(ctx, cfg, log)
		if err == nil {
			e.client, e.direct = v3client.New(e.member.Server), newDirect(e.member.Server)
		}
	} else {
		// A client with a password connects at once, and gives up after opTimeout.
		for e.client, err = dialEtcd(cfg, cfg.Endpoints, log); errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil; {
			e.client, err = dialEtcd(cfg, cfg.Endpoints, log)
		}
		e.dial = func(endpoint string) (*clientv3.Client, error) { return dialEtcd(cfg, []string{endpoint}, log) }
	}
	if err != nil {
		e.cancel()
		return nil, err
	}
	if err := e.loadRevisions(ctx); err != nil {
		err = e.typed(err)
		e.Close()
		return nil, fmt.Errorf("etcd at %v does not respond: %w", cfg.Endpoints, err)
	}
	return e, nil
}

func dialEtcd(cfg EtcdConfig, endpoints []string, log slogCore) (*clientv3.Client, error) {
	config, err := cfg.clientTLS()
	if err != nil {
		return nil, err
	}
	password, err := cfg.Outside.password()
	if err != nil {
		return nil, err
	}
	c := clientv3.Config{
		Endpoints:            endpoints,
		TLS:                  config,
		Username:             cfg.Outside.User,
		Password:             password,
		DialTimeout:          opTimeout,
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 5 * time.Second,
		MaxCallSendMsgSize:   2 * 1024 * 1024,
		Logger:               zap.New(log),
	}
	if cfg.Dial != nil {
		c.DialOptions = append(c.DialOptions, grpc.WithContextDialer(cfg.Dial))
	}
	client, err := clientv3.New(c)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %v: %w", endpoints, err)
	}
	return client, nil
}

// Where names this etcd, for example "etcd at 10.0.0.1:7602".
func (e *Etcd) Where() string {
	if e.member != nil {
		return "etcd (a majority of its members)"
	}
	return "etcd at " + strings.Join(e.client.Endpoints(), ", ")
}

// ClientAddr returns the address where the embedded member serves clients: the configured address,
// or else the address of its socket. It returns "" without a member.
func (e *Etcd) ClientAddr() string {
	if e.member == nil {
		return ""
	}
	return e.member.clientAddr()
}

// Err returns the channel of the embedded member's fatal error, or nil without a member.
func (e *Etcd) Err() <-chan error {
	if e.member == nil {
		return nil
	}
	return e.member.Err()
}

// op returns a context that bounds one operation.
func (e *Etcd) op(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, opTimeout)
}

// typed maps etcd's errors to the errors of this package.
func (e *Etcd) typed(err error) error {
	if err == nil {
		return nil
	}
	if e.ctx.Err() != nil {
		return ErrClosed
	}
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return fmt.Errorf("%w: %w", ErrCompacted, err)
	case errors.Is(err, rpctypes.ErrTooManyOps), errors.Is(err, rpctypes.ErrRequestTooLarge):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: %w", ErrFull, err)
	case errors.Is(err, context.Canceled), status.Code(err) == codes.Canceled:
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: etcd did not respond in time", ErrNoQuorum)
	}
	if code := codeOf(err); code == codes.Unavailable || code == codes.DeadlineExceeded {
		return fmt.Errorf("%w: %w", ErrNoQuorum, err)
	}
	return err
}

// codeOf returns the gRPC code of an error of the client of etcd. Known errors of etcd have a type
// of their own, from which package status reads no code.
func codeOf(err error) codes.Code {
	if e := (rpctypes.EtcdError{}); errors.As(err, &e) {
		return e.Code()
	}
	return status.Code(err)
}

// loadRevisions reads the stored offsets of revisions.
func (e *Etcd) loadRevisions(ctx context.Context) error {
	resp, err := e.client.Get(ctx, raisedKey)
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	return e.setRevisions(string(resp.Kvs[0].Value), resp.Kvs[0].ModRevision)
}

func (e *Etcd) setRevisions(text string, written int64) error {
	r, err := parseRevisions(text, written)
	if err == nil {
		e.revisions.Store(&r)
	}
	return err
}

// seen returns the revision that callers see for one of etcd's own revisions.
func (e *Etcd) seen(own int64) int64 { return e.revisions.Load().seen(own) }

func (e *Etcd) kv(kv *mvccpb.KeyValue) KV {
	return KV{Key: string(kv.Key), Value: kv.Value, CreateRevision: e.seen(kv.CreateRevision), ModRevision: e.seen(kv.ModRevision)}
}

// compare returns a compare in etcd's form. The compare never holds if no write can have its
// revision.
func (e *Etcd) compare(c Compare) clientv3.Cmp {
	own := e.revisions.Load().compared(c.Revision)
	if c.Target == TargetCreate {
		return clientv3.Compare(clientv3.CreateRevision(c.Key), "=", own)
	}
	return clientv3.Compare(clientv3.ModRevision(c.Key), "=", own)
}

// Get implements Store.
func (e *Etcd) Get(ctx context.Context, key string) (KV, bool, int64, error) {
	ctx, cancel := e.op(ctx)
	defer cancel()
	resp, err := e.client.Get(ctx, key)
	if err != nil {
		return KV{}, false, 0, fmt.Errorf("read %s: %w", key, e.typed(err))
	}
	if len(resp.Kvs) == 0 {
		return KV{}, false, e.seen(resp.Header.Revision), nil
	}
	return e.kv(resp.Kvs[0]), true, e.seen(resp.Header.Revision), nil
}

// MaxOps implements Store.
func (e *Etcd) MaxOps() int {
	if e.member != nil {
		return memberTxnOps
	}
	return MaxTxnOps
}

// Txn implements Store.
func (e *Etcd) Txn(ctx context.Context, compares []Compare, ops []Op) (int64, error) {
	if err := checkTxn(e.MaxOps(), compares, ops); err != nil {
		return 0, err
	}
	ctx, cancel := e.op(ctx)
	defer cancel()
	written, err := e.txn(ctx, compares, ops)
	if err != nil {
		return 0, err
	}
	if !written.succeeded {
		return e.seen(written.revision), fmt.Errorf("%w: one of %d keys", ErrCompareFailed, len(compares))
	}
	return e.seen(written.revision), nil
}

// txn carries out a transaction. The outcome has etcd's own revision.
func (e *Etcd) txn(ctx context.Context, compares []Compare, ops []Op) (written outcome, err error) {
	leases := make([]clientv3.LeaseID, len(ops))
	for i, op := range ops {
		if op.Delete || op.TTL <= 0 {
			continue
		}
		leases[i], err = e.lease(ctx, op.TTL)
		if err != nil {
			return outcome{}, fmt.Errorf("lease of %s: %w", op.Key, e.typed(err))
		}
	}
	if e.direct != nil {
		written, err = e.direct.txn(ctx, e.revisions.Load(), compares, ops, leases)
	} else {
		written, err = e.remote(ctx, compares, ops, leases)
	}
	if err != nil {
		return outcome{}, fmt.Errorf("write %d keys: %w", len(ops), e.typed(err))
	}
	return written, nil
}

// outcome is the result of a transaction.
type outcome struct {
	succeeded bool
	revision  int64 // etcd's own
}

// remote carries out a transaction through a client.
func (e *Etcd) remote(ctx context.Context, compares []Compare, ops []Op, leases []clientv3.LeaseID) (outcome, error) {
	cmps := make([]clientv3.Cmp, len(compares))
	for i, c := range compares {
		cmps[i] = e.compare(c)
	}
	puts := make([]clientv3.Op, len(ops))
	for i, op := range ops {
		switch {
		case op.Delete && op.End != "":
			puts[i] = clientv3.OpDelete(op.Key, clientv3.WithRange(op.End))
		case op.Delete:
			puts[i] = clientv3.OpDelete(op.Key)
		case op.TTL > 0:
			puts[i] = clientv3.OpPut(op.Key, string(op.Value), clientv3.WithLease(leases[i]))
		default:
			puts[i] = clientv3.OpPut(op.Key, string(op.Value))
		}
	}
	resp, err := e.client.Txn(ctx).If(cmps...).Then(puts...).Commit()
	if err != nil {
		return outcome{}, err
	}
	return outcome{resp.Succeeded, resp.Header.Revision}, nil
}

// Raise implements Store. The write that stores the offset has a greater own revision than the read
// before it. So the revision of that write, with the offset added, is greater than the argument
// above.
func (e *Etcd) Raise(ctx context.Context, above int64, compares []Compare, ops []Op) (int64, error) {
	ctx, cancel := e.op(ctx)
	defer cancel()
	got, err := e.client.Get(ctx, raisedKey)
	if err != nil {
		return 0, fmt.Errorf("raise the revisions: %w", e.typed(err))
	}
	known := Mod(raisedKey, 0)
	if len(got.Kvs) > 0 {
		if err := e.setRevisions(string(got.Kvs[0].Value), got.Kvs[0].ModRevision); err != nil {
			return 0, err
		}
		known.Revision = e.seen(got.Kvs[0].ModRevision)
	}
	next := e.revisions.Load().above(above, got.Header.Revision).String()
	compares, ops = append(slices.Clone(compares), known), append(slices.Clone(ops), Put(raisedKey, []byte(next)))
	if err := checkTxn(e.MaxOps(), compares, ops); err != nil {
		return 0, err
	}
	written, err := e.txn(ctx, compares, ops)
	switch {
	case err != nil:
		return 0, fmt.Errorf("raise the revisions: %w", err)
	case !written.succeeded:
		return e.seen(written.revision), fmt.Errorf("raise the revisions: %w", ErrCompareFailed)
	}
	if err := e.setRevisions(next, written.revision); err != nil {
		return 0, err
	}
	return e.seen(written.revision), nil
}

// lease returns the shared lease of a TTL. If that lease is older than a twelfth of the TTL, lease
// grants a new one.
func (e *Etcd) lease(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	share := ttl / 12
	if l, ok := e.leases[ttl]; ok && time.Since(l.granted) < share {
		return l.id, nil
	}
	resp, err := e.client.Grant(ctx, seconds(ttl+share))
	if err != nil {
		return 0, err
	}
	e.leases[ttl] = sharedLease{id: resp.ID, granted: time.Now()}
	return resp.ID, nil
}

// seconds rounds a duration up to whole seconds, as etcd needs them.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// Watch implements Store.
func (e *Etcd) Watch(ctx context.Context, prefix string, after int64, send func([]Event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(e.ctx, cancel)
	defer stop()
	own, _ := e.revisions.Load().own(after)
	for resp := range e.client.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithRev(own+1)) {
		if err := resp.Err(); err != nil {
			return fmt.Errorf("watch %s: %w", prefix, e.typed(err))
		}
		events := make([]Event, len(resp.Events))
		for i, ev := range resp.Events {
			events[i] = Event{KV: e.kv(ev.Kv), Deleted: ev.Type == clientv3.EventTypeDelete}
		}
		if len(events) == 0 {
			continue
		}
		if err := send(events); err != nil {
			return err
		}
	}
	if e.ctx.Err() != nil {
		return ErrClosed
	}
	return ctx.Err()
}

// Leader implements Store.
func (e *Etcd) Leader(ctx context.Context, prefix string) (KV, bool, error) {
	ctx, cancel := e.op(ctx)
	defer cancel()
	resp, err := e.client.Get(ctx, prefix, clientv3.WithFirstCreate()...)
	if err != nil {
		return KV{}, false, fmt.Errorf("read the leader under %s: %w", prefix, e.typed(err))
	}
	if len(resp.Kvs) == 0 {
		return KV{}, false, nil
	}
	return e.kv(resp.Kvs[0]), true, nil
}

// Close implements Store. It also stops an embedded member.
func (e *Etcd) Close() error {
	var err error
	e.close.Do(func() {
		e.closing.Store(true)
		e.cancel()
		err = e.client.Close()
		if errors.Is(err, context.Canceled) {
			err = nil // clientv3 returns this error when its own context was canceled
		}
		if e.member != nil {
			e.member.close()
		}
	})
	return err
}
