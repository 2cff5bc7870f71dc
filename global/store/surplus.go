package store

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Surplus is the number of entries that the log of a store has beyond its revisions. Each revision
// is written by one entry, and some entries write none, so the number never decreases in one log. A
// restored snapshot has the revisions of the old log and begins another log. So its number is lower
// than every number that is stored in it.
type Surplus struct {
	// Least and Most are bounds for the number, because the log may grow while it is read.
	Least, Most int64
	// Known is false for a store that does not report the length of its log.
	Known bool
}

// memberTimeout bounds the calls to one member of an external etcd.
const memberTimeout = 2 * time.Second

// Surplus implements Store. It asks one member, which must have everything that was committed
// before. Otherwise that member's log could be a shorter part of the same log.
func (e *Etcd) Surplus(ctx context.Context) (Surplus, error) {
	if e.member != nil {
		return e.surplus(ctx, e.client, "")
	}
	var failed error
	for _, endpoint := range e.client.Endpoints() {
		s, err := e.surplusAt(ctx, endpoint)
		if err == nil {
			return s, nil
		}
		failed = err
	}
	return Surplus{}, fmt.Errorf("the length of the store's log: %w", e.typed(failed))
}

// surplusAt asks one endpoint of an external etcd.
func (e *Etcd) surplusAt(ctx context.Context, endpoint string) (Surplus, error) {
	c, err := e.dial(endpoint)
	if err != nil {
		return Surplus{}, err
	}
	defer c.Close()
	return e.surplus(ctx, c, endpoint)
}

func (e *Etcd) surplus(ctx context.Context, c *clientv3.Client, endpoint string) (Surplus, error) {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	got, err := c.Get(ctx, raisedKey, clientv3.WithKeysOnly()) // waits until the member has all entries
	if err != nil {
		return Surplus{}, err
	}
	first, err := c.Status(ctx, endpoint)
	if code := status.Code(err); code == codes.Unimplemented || code == codes.PermissionDenied {
		return Surplus{}, nil
	}
	if err != nil {
		return Surplus{}, err
	}
	second, err := c.Status(ctx, endpoint)
	if err != nil {
		return Surplus{}, err
	}
	m, tells := got.Header.MemberId, first.RaftAppliedIndex != 0
	if !tells || first.Header.MemberId != m || second.Header.MemberId != m {
		return Surplus{}, nil // a proxy sends the requests to different members
	}
	// A member reads the revision for its status before it reads the two indices.
	return Surplus{
		Least: int64(first.RaftAppliedIndex) - second.Header.Revision,
		Most:  int64(first.RaftIndex) - first.Header.Revision,
		Known: true,
	}, nil
}
