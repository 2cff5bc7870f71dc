package uplink

import (
	"fmt"
	"testing"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/boottime"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// BenchmarkMessage handles messages of a region's session, without the stream. An order is that of a slot which the
// region does not own.
func BenchmarkMessage(b *testing.B) {
	s := newServer(b, boottime.NewClock().Now, "alpha")
	c, r := s.live["alpha"], s.st.Regions["alpha"]
	c.opened.Store(true)
	c.stream = &script{}
	c.inbox, c.cursor = link.NewInbox[summary](maxSummaries), r.Orders.Cursor(r.Orders.Position())
	r.SummaryKeys = map[string]int32{}
	groups := map[string]*nusav1.InstanceCounts{"web": {Running: 3}}
	for name, m := range map[string]*nusav1.RegionMessage{
		"ack":     {Kind: &nusav1.RegionMessage_OrdersAck{OrdersAck: &nusav1.Position{Epoch: "e", Sequence: 1}}},
		"lease":   {Kind: &nusav1.RegionMessage_Lease{Lease: &nusav1.LeaseRequest{}}},
		"summary": {Kind: &nusav1.RegionMessage_Summaries{Summaries: &nusav1.JobSummaries{Summaries: []*nusav1.JobSummary{{Namespace: "default", Job: "api", Groups: groups}}}}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if m.GetLease() != nil {
					m.GetLease().Id++
					m.GetLease().Granted = m.GetLease().GetId() - 1
				}
				if !s.handleLease(c, m) {
					if _, err := s.handle(b.Context(), c, m, false); err != nil {
						b.Fatal(err)
					}
				}
				for c.outbox.len() > 0 {
					c.outbox.take()
				}
			}
		})
	}
	b.Run("order", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.Orders.Put("default/api/web/0", state.Order{Revision: 1})
			if c.next() == nil {
				b.Fatal("no order")
			}
		}
	})
	b.Run("32orders", func(b *testing.B) {
		var keys [32]string
		for i := range keys {
			keys[i] = fmt.Sprintf("default/api%d/web/0", i)
		}
		b.ReportAllocs()
		for b.Loop() {
			for _, key := range keys {
				r.Orders.Put(key, state.Order{Revision: 1})
			}
			if c.next() == nil {
				b.Fatal("no orders")
			}
		}
	})
}
