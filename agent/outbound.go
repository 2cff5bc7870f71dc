package agent

import (
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxTombstones is how many removed reports are remembered for a master that
// was away.
const maxTombstones = 1024

// pulse wakes everybody who waits, again and again.
type pulse struct {
	mu sync.Mutex
	ch chan struct{}
}

func newPulse() *pulse { return &pulse{ch: make(chan struct{})} }

// next returns a channel that is closed at the next beat.
func (p *pulse) next() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ch
}

func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.ch)
	p.ch = make(chan struct{})
}

// reports is the latest report of each allocation, for the master.
type reports struct {
	grown *pulse

	mu  sync.Mutex
	box *link.Outbox[*nusav1.AllocReport]
	// acked is the position the master has committed.
	acked link.Position
}

// newReports numbers under the store's id. Numbers of this start are higher
// than all of earlier ones, whose removals are not known any more: so a master
// from before gets the full set.
func newReports(s *store) *reports {
	r := &reports{grown: newPulse(), box: link.NewOutbox[*nusav1.AllocReport](s.id, maxTombstones)}
	r.box.ForgetUpTo(s.starts << 32)
	return r
}

// put sets the latest report; an equal one is no change unless it must be
// repeated.
func (r *reports) put(id string, rep *nusav1.AllocReport, repeat bool) {
	r.mu.Lock()
	old, held := r.box.Get(id)
	same := held && !repeat && proto.Equal(old, rep)
	if !same {
		r.box.Put(id, rep)
	}
	r.mu.Unlock()
	if !same {
		r.grown.beat()
	}
}

func (r *reports) delete(id string) {
	r.mu.Lock()
	r.box.Delete(id)
	r.mu.Unlock()
	r.grown.beat()
}

// cursor resumes where a master stands.
func (r *reports) cursor(from link.Position) *link.Cursor[*nusav1.AllocReport] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.box.Cursor(from)
}

// next batch of a cursor, bounded in items and bytes.
func (r *reports) next(c *link.Cursor[*nusav1.AllocReport]) (link.Batch[*nusav1.AllocReport], bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.NextWithin(maxBatchItems, maxBatchBytes, func(i link.Item[*nusav1.AllocReport]) int { return proto.Size(i.Value) })
}

func (r *reports) ack(at link.Position) {
	r.mu.Lock()
	r.acked = at
	r.mu.Unlock()
	r.grown.beat()
}

// settled: the master has committed everything there is.
func (r *reports) settled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acked == r.box.Position()
}
