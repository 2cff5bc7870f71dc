package parts

import (
	"context"
	"strconv"
	"time"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// waiting bounds the requests that wait for a transaction.
	waiting = 1024
	// patience is how long patient requests wait for another request.
	patience = 2 * time.Millisecond
)

// request asks for writes that belong together.
type request struct {
	puts []store.Op
	// jobs is how many jobs the request submits. changes is how many events tell of it: one for each
	// of these jobs, and one for each slot.
	jobs, changes int
	// patient: nobody waits for the request, so it may wait to share a transaction.
	patient bool
	// stored is called when the writes are durable. It may add orders for regions.
	stored func(revision int64, out *outgoing)
}

// outgoing holds the regions that get orders because of one transaction.
type outgoing struct{ to []*session }

func (o *outgoing) add(s *session, order *nusav1.SlotOrder) {
	if s.add(order) {
		o.to = append(o.to, s)
	}
}

// put queues a request. It waits while the queue is full.
func (p *parts) put(ctx context.Context, r request) error {
	select {
	case p.requests <- r:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write writes the requests until ctx ends or a transaction fails. One transaction is in
// flight: with more of them, each would have fewer requests, and they would take longer.
func (p *parts) write(ctx context.Context) error {
	for {
		b := p.collect(ctx)
		if len(b) == 0 {
			return nil
		}
		if err := p.commit(ctx, b); err != nil {
			return err
		}
	}
}

// batch holds the requests of one transaction.
type batch struct {
	requests  []request
	ops, most int
}

// add adds a request. It returns false if the request does not fit.
func (b *batch) add(r request) bool {
	if len(b.requests) > 0 && b.ops+len(r.puts) > b.most {
		return false
	}
	b.requests, b.ops = append(b.requests, r), b.ops+len(r.puts)
	return true
}

// collect returns the requests of the next transaction: all that wait and fit. It returns
// none when ctx ends.
func (p *parts) collect(ctx context.Context) []request {
	b := batch{most: p.store.MaxOps() - len(logs)}
	if p.carry != nil {
		b.add(*p.carry)
		p.carry = nil
	} else {
		select {
		case r := <-p.requests:
			b.add(r)
		case <-ctx.Done():
			return nil
		}
	}
	if b.requests[0].patient && !p.company(ctx, &b) {
		return b.requests
	}
	for {
		select {
		case r := <-p.requests:
			if !b.add(r) {
				p.carry = &r
				return b.requests
			}
		default:
			return b.requests
		}
	}
}

// company waits, for at most patience, until a request arrives that is not patient. It
// returns false if the batch takes no further request.
func (p *parts) company(ctx context.Context, b *batch) bool {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case r := <-p.requests:
			switch {
			case !b.add(r):
				p.carry = &r
				return false
			case !r.patient:
				return true
			}
		case <-late.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// commit writes a transaction, and sends the orders that follow from it.
func (p *parts) commit(ctx context.Context, batch []request) error {
	var ops []store.Op
	jobs, changes := 0, 0
	for i := range batch {
		ops = append(ops, batch[i].puts...)
		jobs, changes = jobs+batch[i].jobs, changes+batch[i].changes
	}
	p.written++
	for i, bytes := range [...]int{jobs * auditBytes, changes * eventBytes} {
		if bytes > 0 {
			ops = append(ops, store.Put(logs[i]+strconv.FormatUint(p.written, 10), make([]byte, bytes)))
		}
	}
	revision, err := p.store.Txn(context.WithoutCancel(ctx), []store.Compare{p.guard}, ops)
	if err != nil {
		return err
	}
	var out outgoing
	for i := range batch {
		batch[i].stored(revision, &out)
	}
	for _, s := range out.to {
		s.flush()
	}
	return nil
}
