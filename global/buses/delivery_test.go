package buses

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/broker"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const natsURL = "nats://127.0.0.1:4222"

// ids returns the ids of messages, and fails if one of them comes before an earlier one for the first time.
func ids(t *testing.T, all []broker.Message) map[string]int {
	t.Helper()
	out, last := map[string]int{}, 0
	for _, m := range all {
		n := 0
		if _, err := fmt.Sscanf(m.ID, "fed-%d", &n); err != nil {
			t.Fatalf("id %q", m.ID)
		}
		if out[m.ID] == 0 && n < last {
			t.Errorf("%s comes first after event %d", m.ID, last)
		}
		last = max(last, n)
		out[m.ID]++
	}
	return out
}

func TestPublishes(t *testing.T) {
	b := newBroker()
	w := newWorld(t, b.dial)
	w.log.add("job.submitted", "pay/before") // not published: the bus does not exist yet
	req := to("pay", natsURL)
	req.Bus.Types, req.Bus.Filter = []string{"job.*", "bus.*"}, `!event.subject.contains("skip")`
	w.set(req)
	w.log.add("job.submitted", "pay/skip")
	w.log.add("slot.offered", "pay/shop")
	w.log.add("bus.disabled", "pay")
	other := w.log.add("bus.disabled", "other")
	n := w.log.add("job.submitted", "pay/shop")
	w.awaitStatus("pay", "two messages", func(s *nusav1.BusStatus) bool { return s.GetPublished() == 2 && s.GetLag() == 0 && s.GetConnected() })
	got := b.messages()
	if len(got) != 2 || got[0].ID != fmt.Sprint("fed-", other) || got[1].ID != fmt.Sprint("fed-", n) || got[1].Key != "job.submitted" {
		t.Fatalf("%v", got)
	}
	if !strings.HasPrefix(got[1].ContentType, "application/cloudevents+json") || !strings.Contains(string(got[1].Body), `"type":"nusa.job.submitted"`) {
		t.Errorf("%s %s", got[1].ContentType, got[1].Body)
	}
	if got := w.get("pay"); got.GetSubject() != "nusa.events" || !got.GetBroker().GetHasPassword() || strings.Contains(got.String(), "pa55") {
		t.Errorf("%v", got)
	}
}

// TestKilledInTheMiddleLosesNothing: terms end without a last write, connections end, and the broker
// refuses messages. Every event is published, in order, with one id.
func TestKilledInTheMiddleLosesNothing(t *testing.T) {
	b := newBroker()
	w := newWorld(t, b.dial)
	w.set(to("bus", natsURL))
	const events = 3000
	for i := range events {
		w.log.add("job.submitted", fmt.Sprint("a/", i))
		switch i % 1000 {
		case 300:
			w.await("some messages", func() bool { return len(b.messages()) > i/4 })
			w.restart()
		case 600:
			b.set(func() { b.refuse = 17 })
		case 650: // the broker has seen the message to refuse, even if all earlier messages had been published by 600
			w.awaitStatus("bus", "a refusal", func(s *nusav1.BusStatus) bool { return s.GetState() == nusav1.BusState_BUS_STATE_FAILING })
			if st := w.get("bus").GetStatus(); !strings.Contains(st.GetLastError(), "stores no message") || st.GetNextAttempt() == nil {
				t.Errorf("%v", st)
			}
			b.set(func() { b.refuse = -1 })
			w.advance(2 * time.Second)
		case 900:
			b.set(func() { b.down = true })
			w.awaitStatus("bus", "no connection", func(s *nusav1.BusStatus) bool {
				return s.GetState() == nusav1.BusState_BUS_STATE_FAILING && !s.GetConnected()
			})
			b.set(func() { b.down = false })
			w.advance(2 * time.Minute)
		}
	}
	w.awaitStatus("bus", "everything", func(s *nusav1.BusStatus) bool {
		w.advance(time.Minute)
		return s.GetLag() == 0 && s.GetState() == nusav1.BusState_BUS_STATE_OK
	})
	got := ids(t, b.messages())
	repeated := 0
	for _, n := range got {
		repeated += n - 1
	}
	t.Logf("%d of %d messages were published again", repeated, events)
	if len(got) != events {
		t.Errorf("%d of %d events", len(got), events)
	}
	w.end()
	if b.open != 0 {
		t.Errorf("%d connections are open after the end", b.open)
	}
	w.begin()
}

// TestARefusedMessageRepeatsNoOther: while the broker refuses one event, what follows is not sent again and
// again.
func TestARefusedMessageRepeatsNoOther(t *testing.T) {
	b := newBroker()
	w := newWorld(t, b.dial)
	b.set(func() { b.refuse = 0 })
	w.set(to("bus", natsURL))
	for range 50 {
		w.log.add("job.submitted", "a/b")
	}
	for i := range 20 {
		w.awaitStatus("bus", "a failure", func(s *nusav1.BusStatus) bool { return s.GetFailed() > uint64(i) })
		w.advance(2 * time.Minute)
	}
	if n := len(b.messages()); n > 0 {
		t.Errorf("%d messages", n)
	}
	w.await("the alarm", func() bool {
		return strings.Contains(strings.Join(w.state.Alarms(), "\n"), "events wait too long for buses, or were removed before they were published: bus; see nusa bus list")
	})
	if _, err := w.api.Enable(t.Context(), &nusav1.EnableBusRequest{Name: "bus", Skip: true}); err != nil {
		t.Fatal(err)
	}
	w.mustHave("bus.skipped", "by an operator")
	b.set(func() { b.refuse = -1 })
	n := w.log.add("job.submitted", "a/c")
	w.await("the next event", func() bool { return len(b.messages()) == 1 })
	if got := b.messages()[0].ID; got != fmt.Sprint("fed-", n) {
		t.Errorf("%s, want %d", got, n)
	}
	w.await("no alarm", func() bool { return len(w.state.Alarms()) == 0 })
}

// TestABusThatHangsDelaysNoOther: a broker that never answers holds its own bus only.
func TestABusThatHangsDelaysNoOther(t *testing.T) {
	dead, good := newBroker(), newBroker()
	dead.hang = true
	w := newWorld(t, nil)
	w.end()
	w.dial = func(ctx context.Context, target *broker.Target, sink broker.Sink) (broker.Publisher, error) {
		if sink.Subject == "dead" {
			return dead.dial(ctx, target, sink)
		}
		return good.dial(ctx, target, sink)
	}
	w.begin()
	for _, name := range []string{"dead-1", "dead-2"} {
		req := to(name, natsURL)
		req.Bus.Subject = "dead"
		w.set(req)
	}
	w.set(to("good", natsURL))
	for range 1000 {
		w.log.add("job.submitted", "a/b")
	}
	w.await("all events", func() bool { return len(good.messages()) == 1000 })
	if st := w.get("dead-1").GetStatus(); st.GetLag() != 1000 || st.GetPublished() != 0 {
		t.Errorf("%v", st)
	}
	w.restart() // ends what hangs, and does not wait for the time limit of a call
	var ended []error
	dead.set(func() { ended = slices.Clone(dead.ended) })
	if !slices.Contains(ended, context.Canceled) {
		t.Errorf("the calls that hung ended with %v", ended)
	}
}

// TestDisconnectedForLong: retention removes events while the broker is away. They are counted, an alarm tells it,
// and the next message says how many are missing. The memory does not grow: nothing is read meanwhile.
func TestDisconnectedForLong(t *testing.T) {
	b := newBroker()
	w := newWorld(t, b.dial)
	w.set(to("bus", natsURL))
	b.set(func() { b.down = true })
	for range 500 {
		w.log.add("job.submitted", "a/b")
	}
	w.awaitStatus("bus", "failing", func(s *nusav1.BusStatus) bool { return s.GetState() == nusav1.BusState_BUS_STATE_FAILING })
	w.log.retain(400)
	w.advance(2 * time.Minute)
	w.awaitStatus("bus", "dropped while it is away", func(s *nusav1.BusStatus) bool { return s.GetDropped() == 400 && s.GetLag() == 100 })
	w.await("the alarm", func() bool { return strings.Contains(strings.Join(w.state.Alarms(), "\n"), "bus; see nusa bus list") })
	w.await("the progress", func() bool { p, _ := w.term.progress.Get("bus"); return p.GetDropped() == 400 })
	b.set(func() { b.down = false })
	w.advance(2 * time.Minute)
	w.awaitStatus("bus", "the rest", func(s *nusav1.BusStatus) bool {
		return s.GetLag() == 0 && s.GetPublished() == 100 && s.GetDropped() == 400
	})
	got := b.messages()
	if len(got) != 100 || got[0].ID != "fed-401" || got[0].Headers[missedHeader] != "400" || got[1].Headers[missedHeader] != "" {
		t.Errorf("%d messages, the first %v", len(got), got[0])
	}
}
