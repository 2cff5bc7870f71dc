package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
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

// Surplus implements Store. It asks the members of an external etcd at the same time, and takes the
// first answer. A member answers only when it has everything that was committed before. Otherwise
// the length of its log could be that of a shorter part of the same log.
func (e *Etcd) Surplus(ctx context.Context) (Surplus, error) {
	const what = "the length of the store's log: %w"
	if e.member != nil {
		s, err := e.surplus(ctx, e.client, "")
		if err != nil {
			return Surplus{}, fmt.Errorf(what, e.typed(err))
		}
		return s, nil
	}
	type answer struct {
		s   Surplus
		err error
	}
	endpoints := e.client.Endpoints()
	answers := make(chan answer, len(endpoints)) // each goroutine sends one result, even when no caller receives it any more
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	for _, endpoint := range endpoints {
		asking.Go(func() {
			s, err := e.surplusAt(ctx, endpoint)
			answers <- answer{s, err}
		})
	}
	failed := errors.New("there are no endpoints")
	for range endpoints {
		a := <-answers
		if a.err == nil {
			return a.s, nil
		}
		failed = a.err
	}
	return Surplus{}, fmt.Errorf(what, e.typed(failed))
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
	switch codeOf(err) {
	case codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated:
		return Surplus{}, nil // the endpoint is a proxy without this call, or this user may not ask
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
