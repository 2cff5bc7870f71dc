package uplink

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// gate is a stream that takes a message when the region reads.
type gate struct {
	grpc.ServerStream
	reads chan uint64 // ids of grants
}

func (*gate) Recv() (*nusav1.RegionMessage, error) { select {} }

func (g *gate) Send(m *nusav1.GlobalMessage) error {
	g.reads <- m.GetLease().GetId()
	return nil
}

// TestReceiverNeverWaitsForTheRegion: a grant is on the stream when its request is handled. If the region does not
// read, the request is handled too, and the sender sends the grant later, in order.
func TestReceiverNeverWaitsForTheRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, func() time.Duration { return time.Second }, "alpha")
		c := s.live["alpha"]
		c.cursor = s.st.Regions["alpha"].Orders.Cursor(link.Position{})
		ctx, cancel := context.WithCancel(t.Context())
		stream := &gate{reads: make(chan uint64, 2)}
		ended := make(chan error, 1)
		go func() { ended <- c.send(ctx, stream) }()
		synctest.Wait()
		var got []uint64
		read := func() {
			for len(stream.reads) > 0 {
				got = append(got, <-stream.reads)
				synctest.Wait()
			}
		}
		s.requestLease(c, &nusav1.LeaseRequest{Id: 1}, 0)
		s.requestLease(c, &nusav1.LeaseRequest{Id: 2, Granted: 1}, 0)
		if len(stream.reads) != 2 {
			t.Errorf("%d grants are sent when their requests are handled, want 2", len(stream.reads))
		}
		read()
		c.unread.sent += 2 * maxUnread // sets that the region has not read yet
		s.requestLease(c, &nusav1.LeaseRequest{Id: 3, Granted: 1}, 0)
		if len(stream.reads) != 0 {
			t.Error("the receiver sends although the region has not read enough")
		}
		synctest.Wait()
		s.requestLease(c, &nusav1.LeaseRequest{Id: 4, Granted: 3}, 0)
		if len(stream.reads) != 2 {
			t.Errorf("%d grants are sent to a region that has read everything, want 2", len(stream.reads))
		}
		c.post(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Lease{Lease: &nusav1.LeaseGrant{Id: 5}}}) // the sender waits for the region
		synctest.Wait()
		s.requestLease(c, &nusav1.LeaseRequest{Id: 6, Granted: 4}, 0)
		synctest.Wait()
		read()
		cancel()
		if err := <-ended; err != context.Canceled {
			t.Errorf("the sender ends: %v", err)
		}
		if want := []uint64{1, 2, 3, 4, 5, 6}; !slices.Equal(got, want) {
			t.Errorf("the region reads the grants %v, want %v", got, want)
		}
		s.requestLease(c, &nusav1.LeaseRequest{Id: 7, Granted: 6}, 0)
		if len(stream.reads) != 0 || c.outbox.len() != 1 {
			t.Error("a grant is sent after the sender has ended")
		}
	})
}

// TestOutboxIsBounded: an outbox takes sessionQueue messages, and returns them in order.
func TestOutboxIsBounded(t *testing.T) {
	var o outbox
	for round := range 2 {
		n := 0
		for o.put(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Lease{Lease: &nusav1.LeaseGrant{Id: uint64(n)}}}) {
			n++
		}
		if n != sessionQueue || o.len() != n {
			t.Errorf("round %d: the outbox takes %d messages and has %d, want %d", round, n, o.len(), sessionQueue)
		}
		for i := range n {
			if id := o.take().GetLease().GetId(); id != uint64(i) {
				t.Fatalf("round %d: message %d comes as number %d", round, id, i)
			}
		}
		if o.take() != nil {
			t.Errorf("round %d: the outbox is not empty", round)
		}
	}
}
