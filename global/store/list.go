package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// maxPage bounds the keys of a page, and pageBytes is about its greatest size. For each page an
	// etcd in another process counts all keys that follow, so a list of many short pages takes long.
	maxPage, pageBytes = 10_000, 4 << 20
)

// page is one page of a list, or the error of reading it.
type page struct {
	resp *clientv3.GetResponse
	err  error
}

// pages reads the keys under a prefix page by page, all at one revision.
type pages struct {
	e        *Etcd
	from     string
	end      string
	revision int64
	limit    int64
}

// read returns the next page.
func (p *pages) read(ctx context.Context) page {
	ctx, cancel := p.e.op(ctx)
	defer cancel()
	if p.revision != 0 && p.e.direct != nil { // this member has already reached the revision
		resp, err := p.e.direct.keys(ctx, p.from, p.end, p.revision, p.limit)
		return page{resp, err}
	}
	resp, err := p.e.client.Get(ctx, p.from, clientv3.WithRange(p.end), clientv3.WithLimit(p.limit), clientv3.WithRev(p.revision))
	return page{resp, err}
}

// next prepares the read of the page after resp. The length of that page depends on the size of the
// keys so far.
func (p *pages) next(resp *clientv3.GetResponse) {
	p.from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	size := 0
	for _, kv := range resp.Kvs {
		size += len(kv.Key) + len(kv.Value)
	}
	each := max(1, size/len(resp.Kvs))
	p.limit = min(maxPage, 4*p.limit, max(1, int64(pageBytes/each)))
}

// List implements Store.
func (e *Etcd) List(ctx context.Context, prefix string, visit func(KV) error) (int64, error) {
	return e.Range(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), visit)
}

// Range implements Store. It reads the next page while it visits the present one.
func (e *Etcd) Range(ctx context.Context, from, end string, visit func(KV) error) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	p := &pages{e: e, from: from, end: end, limit: PageSize}
	done := e.beginning()
	now := p.read(ctx)
	ahead := make(chan page, 1)
	reading := false
	defer func() {
		cancel()
		if reading {
			<-ahead
		}
		done()
	}()
	for {
		if now.err != nil {
			return e.seen(p.revision), fmt.Errorf("list %s: %w", from, e.typed(now.err))
		}
		if p.revision == 0 {
			p.revision = now.resp.Header.Revision
			begun := done
			done = e.reading(p.revision)
			begun()
		}
		reading = now.resp.More && len(now.resp.Kvs) > 0
		if reading {
			p.next(now.resp)
			go func() { ahead <- p.read(ctx) }()
		}
		for _, kv := range now.resp.Kvs {
			if err := visit(e.kv(kv)); err != nil {
				return e.seen(p.revision), err
			}
		}
		if !reading {
			return e.seen(p.revision), nil
		}
		now, reading = <-ahead, false
	}
}
