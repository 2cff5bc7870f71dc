package uplink

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxUnread bounds the bytes that a region may not have read yet when the receiver sends a grant. gRPC takes 64 KiB
// of a stream without a wait.
const maxUnread = 32 << 10

// outbox holds the messages, except the sets, that wait to be sent to a region.
type outbox struct {
	mu      sync.Mutex
	waiting []*nusav1.GlobalMessage
}

// put adds a message. It returns false if the outbox is full.
func (o *outbox) put(m *nusav1.GlobalMessage) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.waiting) >= sessionQueue {
		return false
	}
	o.waiting = append(o.waiting, m)
	return true
}

// take removes the oldest message, and returns it. It returns nil if there is none.
func (o *outbox) take() *nusav1.GlobalMessage {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.waiting) == 0 {
		return nil
	}
	m := o.waiting[0]
	o.waiting[0], o.waiting = nil, o.waiting[1:]
	if len(o.waiting) == 0 {
		o.waiting = nil
	}
	return m
}

func (o *outbox) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.waiting)
}

// unread follows how much of what was sent a region has certainly read. A lease request names the latest grant that
// the region got, and a region gets everything in order.
type unread struct {
	// grant is the id of the latest grant, and sentWith the number of bytes that were sent up to that grant.
	grant                uint64
	sent, sentWith, read int
}

// note notes a message that is sent now.
func (u *unread) note(m *nusav1.GlobalMessage) {
	u.sent += proto.Size(m)
	if g := m.GetLease(); g != nil {
		u.grant, u.sentWith = g.GetId(), u.sent
	}
}

// granted notes the id of the latest grant that the region has.
func (u *unread) granted(id uint64) {
	if id == u.grant {
		u.read = u.sentWith
	}
}

// few reports whether the region has read all but maxUnread bytes.
func (u *unread) few() bool { return u.sent-u.read <= maxUnread }

// grantMessage is the message that grants a lease, in one piece of memory.
type grantMessage struct {
	message  nusav1.GlobalMessage
	kind     nusav1.GlobalMessage_Lease
	grant    nusav1.LeaseGrant
	duration durationpb.Duration
	term     nusav1.LeadershipTerm
	orders   nusav1.Position
}

// grantMessages are messages that are sent, and used again.
var grantMessages = sync.Pool{New: func() any {
	g := &grantMessage{}
	g.message.Kind, g.kind.Lease = &g.kind, &g.grant
	g.grant.Duration, g.grant.LeadershipTerm, g.grant.Orders = &g.duration, &g.term, &g.orders
	return g
}}

// newGrant returns the grant that a region gets for its request. epoch is that of the orders.
func newGrant(e *region.LeaseRequested, c *region.Config, r *region.Record, epoch string) *grantMessage {
	g := grantMessages.Get().(*grantMessage)
	g.grant.Id, g.grant.Fence, g.grant.Incarnation = e.ID, r.Fence, r.Incarnation
	g.duration.Seconds, g.duration.Nanos = int64(c.Lease/time.Second), int32(c.Lease%time.Second)
	g.term.Number, g.term.Nonce = c.Term.Number, c.Term.Nonce
	g.orders.Epoch, g.orders.Sequence = epoch, e.Orders
	return g
}
