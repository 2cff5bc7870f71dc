package uplink

import (
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
)

// sentTo is a stream that counts the acknowledgements of orders.
type sentTo struct {
	globalStream
	acks int
}

func (s *sentTo) Send(m *nusav1.RegionMessage) error {
	if m.GetOrdersAck() != nil {
		s.acks++
	}
	return nil
}

// TestAcknowledgementsWaitForCompany: the first acknowledgement of orders in a session is sent at
// once. A later one is sent together with another message, or after ackWait.
func TestAcknowledgementsWaitForCompany(t *testing.T) {
	stream := &sentTo{}
	ss := &session{u: New(Config{FSM: raftlog.NewFSM()}), stream: stream}
	begin := time.Now()
	for _, c := range []struct {
		what  string
		after time.Duration
		acks  int
		do    func()
	}{
		{"nothing", 0, 0, func() {}},
		{"the first one", 0, 1, func() { ss.ack = &nusav1.Position{Sequence: 1} }},
		{"another one", time.Second, 1, func() { ss.ack = &nusav1.Position{Sequence: 2} }},
		{"a moment later", time.Second + ackWait/2, 1, func() { ss.ack = &nusav1.Position{Sequence: 3} }},
		{"with another message", time.Second + ackWait/2, 2, func() { _ = ss.send(&nusav1.RegionMessage{}) }},
		{"a third one", 2 * time.Second, 2, func() { ss.ack = &nusav1.Position{Sequence: 4} }},
		{"alone, in the end", 2*time.Second + ackWait, 3, func() {}},
		{"nothing again", 3 * time.Second, 3, func() {}},
	} {
		ss.sent = false
		c.do()
		due, err := ss.sendAck(begin.Add(c.after))
		if waits := ss.ack != nil; err != nil || stream.acks != c.acks || waits != !due.IsZero() {
			t.Errorf("%s: %d acknowledged, want %d; next at %s; %v", c.what, stream.acks, c.acks, due.Sub(begin), err)
		}
	}
}
