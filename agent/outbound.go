package agent

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/reconcile"
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

// keeper writes records behind: all but an end may be lost in a crash, because
// the drivers know the truth, so many changes share one transaction.
type keeper struct {
	store *store
	work  chan struct{} // capacity 1

	writing sync.Mutex // held until what was taken is durable

	mu      sync.Mutex
	records map[string]record
	gone    []string
}

func newKeeper(s *store) *keeper {
	return &keeper{store: s, work: make(chan struct{}, 1), records: map[string]record{}}
}

// keep notes the latest record of an allocation.
func (k *keeper) keep(id string, act reconcile.Actual, rep *nusav1.AllocReport) {
	data, err := proto.Marshal(rep)
	if err != nil {
		panic(fmt.Sprintf("report of %s: %v", id, err)) // made here, of valid texts
	}
	k.mu.Lock()
	k.records[id] = record{Actual: act, Report: data}
	k.mu.Unlock()
	k.wake()
}

// drop forgets an allocation altogether.
func (k *keeper) drop(id string) {
	k.mu.Lock()
	delete(k.records, id)
	k.gone = append(k.gone, id)
	k.mu.Unlock()
	k.wake()
}

func (k *keeper) wake() {
	select {
	case k.work <- struct{}{}:
	default:
	}
}

// run writes until ctx ends, and then what is left.
func (k *keeper) run(ctx context.Context) error {
	for {
		select {
		case <-k.work:
			if err := k.flush(); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// flush returns when everything kept so far is durable.
func (k *keeper) flush() error {
	k.writing.Lock()
	defer k.writing.Unlock()
	k.mu.Lock()
	records, gone := k.records, k.gone
	k.records, k.gone = map[string]record{}, nil
	k.mu.Unlock()
	if len(records)+len(gone) == 0 {
		return nil
	}
	if err := k.store.note(records, gone); err != nil {
		return fmt.Errorf("write to the local store: %w", err)
	}
	return nil
}
