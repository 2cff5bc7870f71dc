package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// resignTimeout bounds how long a candidate tries to delete its key. If etcd does not respond, the
// key expires.
const resignTimeout = time.Second

// etcdElection is a candidate's key, which lives as long as the candidate's session. It works like
// etcd's package concurrency, but that package waits for ever in Resign while etcd has no quorum.
type etcdElection struct {
	e       *Etcd
	session *concurrency.Session
	// guard has the revision in etcd's own numbering.
	guard Compare
}

// Campaign implements Store.
func (e *Etcd) Campaign(ctx context.Context, prefix, value string, ttl time.Duration) (Election, error) {
	if e.ctx.Err() != nil {
		return nil, ErrClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	opctx, cancelOp := e.op(ctx)
	defer cancelOp()
	grant, err := e.client.Grant(opctx, seconds(ttl))
	if err != nil {
		return nil, fmt.Errorf("campaign under %s: %w", prefix, e.typed(err))
	}
	session, err := concurrency.NewSession(e.client, concurrency.WithLease(grant.ID), concurrency.WithContext(e.ctx))
	if err != nil {
		return nil, fmt.Errorf("campaign under %s: %w", prefix, e.typed(err))
	}
	// The campaign ends with the session, because a campaign without a session cannot
	// win.
	go func() {
		select {
		case <-session.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	l := &etcdElection{e: e, session: session, guard: Create(fmt.Sprintf("%s%016x", prefix, grant.ID), 0)}
	l.guard.Revision, err = l.stand(opctx, value)
	if err == nil {
		err = l.await(ctx, prefix)
	}
	if err == nil {
		err = e.loadRevisions(ctx) // a predecessor may have raised the revisions
	}
	if err != nil {
		_ = l.withdraw(ctx) // if this fails, the key expires
		return nil, fmt.Errorf("campaign under %s: %w", prefix, e.typed(err))
	}
	return l, nil
}

// stand writes the candidate's key.
func (l *etcdElection) stand(ctx context.Context, value string) (revision int64, err error) {
	resp, err := l.e.client.Put(ctx, l.guard.Key, value, clientv3.WithLease(l.session.Lease()))
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// await waits until no earlier candidate is left. It watches only the latest earlier candidate, so
// that a candidate that leaves wakes only one other candidate.
func (l *etcdElection) await(ctx context.Context, prefix string) error {
	for {
		opts := append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(l.guard.Revision-1))
		resp, err := l.e.client.Get(ctx, prefix, opts...)
		if err != nil {
			return err
		}
		if len(resp.Kvs) == 0 {
			return nil
		}
		if err := l.gone(ctx, string(resp.Kvs[0].Key), resp.Header.Revision+1); err != nil {
			return err
		}
	}
}

func (l *etcdElection) gone(ctx context.Context, key string, from int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for resp := range l.e.client.Watch(ctx, key, clientv3.WithRev(from)) {
		if err := resp.Err(); err != nil {
			return err
		}
		for _, ev := range resp.Events {
			if ev.Type == mvccpb.DELETE {
				return nil
			}
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.New("the watch of the previous candidate ended")
}

// withdraw ends the session. If etcd responds, this deletes the key immediately.
func (l *etcdElection) withdraw(ctx context.Context) error {
	l.session.Orphan()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignTimeout)
	defer cancel()
	defer context.AfterFunc(l.e.ctx, cancel)()
	_, err := l.e.client.Revoke(ctx, l.session.Lease())
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

// Guard implements Election.
func (l *etcdElection) Guard() Compare { return Create(l.guard.Key, l.e.seen(l.guard.Revision)) }

// Lost implements Election.
func (l *etcdElection) Lost() <-chan struct{} { return l.session.Done() }

// Renew implements Election. The lease alone is no proof: if another process has removed the key,
// another candidate may be elected while the lease still lives.
func (l *etcdElection) Renew(ctx context.Context) error {
	ctx, cancel := l.e.op(ctx)
	defer cancel()
	if _, err := l.e.client.KeepAliveOnce(ctx, l.session.Lease()); err != nil {
		return fmt.Errorf("renew the candidacy: %w", l.e.typed(err))
	}
	resp, err := l.e.client.Get(ctx, l.guard.Key, clientv3.WithKeysOnly())
	switch {
	case err != nil:
		return fmt.Errorf("renew the candidacy: %w", l.e.typed(err))
	case len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != l.guard.Revision:
		return fmt.Errorf("renew the candidacy: %w: %s was removed", ErrCompareFailed, l.guard.Key)
	}
	return nil
}

// Resign implements Election.
func (l *etcdElection) Resign(ctx context.Context) error {
	if err := l.withdraw(ctx); err != nil {
		return fmt.Errorf("resign: %w", l.e.typed(err))
	}
	return nil
}
