package master

import (
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/notify"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxTombstones bounds the number of removed reports whose removal is remembered. A master
// that was disconnected needs these removals.
const maxTombstones = 1024

// Reports holds the latest report of each allocation, for the master.
type Reports struct {
	changed notify.Signal

	mu  sync.Mutex
	box *link.Outbox[*nusav1.AllocReport]
	// acknowledged is the position that the master has committed.
	acknowledged link.Position
}

// NewReports returns reports that are numbered under the store's id. starts is how often
// the store was opened. The numbers of this start are greater than those of earlier starts.
// The removals of earlier starts are unknown, so a master with an older position gets the
// full set.
func NewReports(storeID string, starts uint64) *Reports {
	r := &Reports{box: link.NewOutbox[*nusav1.AllocReport](storeID, maxTombstones)}
	r.box.ForgetUpTo(starts << 32)
	return r
}

// Changed returns a channel that the next change or acknowledgement closes.
func (r *Reports) Changed() <-chan struct{} { return r.changed.C() }

// Put sets the latest report. An equal report counts as a change only if repeat is true.
func (r *Reports) Put(id string, rep *nusav1.AllocReport, repeat bool) {
	r.mu.Lock()
	old, exists := r.box.Get(id)
	same := exists && !repeat && proto.Equal(old, rep)
	if !same {
		r.box.Put(id, rep)
	}
	r.mu.Unlock()
	if !same {
		r.changed.Notify()
	}
}

// Delete removes the report of an allocation.
func (r *Reports) Delete(id string) {
	r.mu.Lock()
	r.box.Delete(id)
	r.mu.Unlock()
	r.changed.Notify()
}

// cursor returns a cursor that begins at a master's position.
func (r *Reports) cursor(from link.Position) *link.Cursor[*nusav1.AllocReport] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.box.Cursor(from)
}

// next returns the next batch of a cursor, bounded in items and bytes.
func (r *Reports) next(c *link.Cursor[*nusav1.AllocReport]) (link.Batch[*nusav1.AllocReport], bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.NextWithin(maxBatchItems, maxBatchBytes, func(i link.Item[*nusav1.AllocReport]) int { return proto.Size(i.Value) })
}

func (r *Reports) acknowledge(at link.Position) {
	r.mu.Lock()
	r.acknowledged = at
	r.mu.Unlock()
	r.changed.Notify()
}

// AllAcknowledged reports whether the master has committed every report.
func (r *Reports) AllAcknowledged() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acknowledged == r.box.Position()
}
