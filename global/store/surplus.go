package store

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Surplus is how many entries the log of a store has beyond its revisions. Each revision is
// written by one entry, and some entries write none, so the number never falls while one log
// goes on. A restored snapshot has the revisions of the old log and begins another one: the
// number is lower than any that was stored in it.
type Surplus struct {
	// Least and Most bound the number: the log may grow while it is read.
	Least, Most int64
	// Known is false for a store that does not tell the length of its log.
	Known bool
}

// memberTimeout bounds the questions to one member of an etcd outside this process.
const memberTimeout = 2 * time.Second

// Surplus implements Store. One member has to answer, and it must have all that was committed
// before: otherwise its log may be a shorter part of the same one.
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

// surplusAt asks one endpoint of an etcd outside this process.
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
		return Surplus{}, nil // something between divides the requests among members
	}
	// A status reads the revision before the two indices.
	return Surplus{
		Least: int64(first.RaftAppliedIndex) - second.Header.Revision,
		Most:  int64(first.RaftIndex) - first.Header.Revision,
		Known: true,
	}, nil
}
