package hooks

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/hooks/delivery"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestDelivers(t *testing.T) {
	w, e := newWorld(t), newEndpoint(t, always(204))
	w.log.add("job.submitted", "pay/before", "pay") // not sent: the webhook does not exist yet
	resp := w.set(&nusav1.SetWebhookRequest{Webhook: &nusav1.Webhook{
		Name: "pay", Url: e.URL, Types: []string{"job.*", "webhook.*"}, Namespaces: []string{"pay"}, Filter: `!event.subject.contains("skip")`,
	}})
	w.log.add("job.submitted", "pay/skip", "pay")
	w.log.add("slot.offered", "pay/shop", "pay")
	w.log.add("job.submitted", "other/shop", "other")
	w.log.add("webhook.disabled", "pay", "pay")
	other := w.log.add("webhook.disabled", "other", "pay")
	n := w.log.add("job.submitted", "pay/shop", "pay")
	e.await(t, "two events", func() bool { return e.accepted[n] == 1 && e.accepted[other] == 1 })
	if len(e.attempts) != 2 {
		t.Errorf("attempts of %v: the filter selects two", e.attempts)
	}
	verify(t, resp.GetSecret(), e.headers, e.body)
	if got := e.headers.Get("Content-Type"); !strings.HasPrefix(got, "application/cloudevents+json") {
		t.Errorf("content type %s", got)
	}
	if !e.ids[n]["fed-7"] {
		t.Errorf("webhook-id %v", e.ids[n])
	}
	w.awaitStatus("pay", "everything delivered", func(s *nusav1.WebhookStatus) bool {
		return s.GetDelivered() == 2 && s.GetPending() == 0 && s.GetUnread() == 0 && s.GetState() == nusav1.WebhookState_WEBHOOK_STATE_OK
	})
}

func TestRetriesWithTheSameID(t *testing.T) {
	w, e := newWorld(t), newEndpoint(t, func(_ uint64, attempt int) int {
		if attempt < 3 {
			return 500
		}
		return 200
	})
	w.set(to("hook", e.URL))
	n := w.log.add("job.submitted", "a/b", "a")
	e.await(t, "the first attempt", func() bool { return e.attempts[n] == 1 })
	w.awaitStatus("hook", "failing", func(s *nusav1.WebhookStatus) bool {
		return s.GetState() == nusav1.WebhookState_WEBHOOK_STATE_FAILING && s.GetLastError() == "status 500 Internal Server Error" && s.GetNextAttempt() != nil
	})
	w.advance(4 * time.Second)
	later := w.log.add("job.submitted", "a/c", "a")
	e.await(t, "the first attempt of a later event", func() bool { return e.attempts[later] == 1 })
	if e.attempts[n] != 1 {
		t.Error("a retry before it was due")
	}
	w.advance(2 * time.Second)
	e.await(t, "the second attempt", func() bool { return e.attempts[n] == 2 })
	w.awaitStatus("hook", "the second failure", func(s *nusav1.WebhookStatus) bool { return s.GetFailed() >= 3 })
	w.advance(6 * time.Minute)
	e.await(t, "the third attempt", func() bool { return e.accepted[n] == 1 })
	if len(e.ids[n]) != 1 {
		t.Errorf("several ids of one event: %v", e.ids[n])
	}
	await(t, "the log", &w.log.added, func() bool {
		out, err := w.api.Log(t.Context(), &nusav1.WebhookLogRequest{Name: "hook"})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range out.GetDeliveries() {
			if d.GetNumber() == n && d.GetState() == "delivered" && len(d.GetAttempts()) == 3 && d.GetAttempts()[0].GetStatusCode() == 500 && d.GetAttempts()[2].GetError() == "" && d.GetId() == "fed-1" {
				return true
			}
		}
		return false
	})
}

func TestGivenUpAfterTenAttempts(t *testing.T) {
	w, e := newWorld(t), newEndpoint(t, always(503))
	w.set(to("hook", e.URL))
	n := w.log.add("job.submitted", "a/b", "a")
	for i := 1; i <= delivery.MaxAttempts; i++ {
		e.await(t, "an attempt", func() bool { return e.attempts[n] == i })
		w.awaitStatus("hook", "the failure", func(s *nusav1.WebhookStatus) bool { return s.GetFailed() == uint64(i) })
		w.advance(27 * time.Hour)
	}
	w.awaitStatus("hook", "given up", func(s *nusav1.WebhookStatus) bool { return s.GetGivenUp() == 1 && s.GetPending() == 0 })
	out, err := w.api.Log(t.Context(), &nusav1.WebhookLogRequest{Name: "hook", Failed: true})
	if err != nil || len(out.GetDeliveries()) != 1 || out.GetDeliveries()[0].GetState() != "given up" {
		t.Errorf("%v, %v", out, err)
	}
	if e.attempts[n] != delivery.MaxAttempts {
		t.Errorf("%d attempts", e.attempts[n])
	}
}

func TestGoneDisables(t *testing.T) {
	w, e := newWorld(t), newEndpoint(t, always(410))
	w.set(to("hook", e.URL))
	n := w.log.add("job.submitted", "a/b", "a")
	await(t, "disabled", &w.log.added, func() bool { return w.get("hook").GetDisabled() })
	if got := w.get("hook"); !strings.Contains(got.GetDisabledReason(), "410") || got.GetStatus().GetState() != nusav1.WebhookState_WEBHOOK_STATE_DISABLED {
		t.Errorf("%v", got)
	}
	later := w.log.add("job.submitted", "a/c", "a")
	w.restart()
	w.advance(48 * time.Hour)
	e.setAnswer(always(200))
	if e.attempts[n] != 1 || e.attempts[later] != 0 {
		t.Errorf("%v: a disabled webhook gets nothing", e.attempts)
	}
	if _, err := w.api.Enable(t.Context(), &nusav1.EnableWebhookRequest{Name: "hook"}); err != nil {
		t.Fatal(err)
	}
	e.await(t, "what waited", func() bool { return e.accepted[n] == 1 && e.accepted[later] == 1 })
}

// TestADeadEndpointDelaysNoOther: endpoints that never answer hold their own requests only.
func TestADeadEndpointDelaysNoOther(t *testing.T) {
	w, dead, good := newWorld(t), newEndpoint(t, always(0)), newEndpoint(t, always(200))
	for _, name := range []string{"dead-1", "dead-2", "dead-3"} {
		req := to(name, dead.URL)
		req.Webhook.Timeout = durationpb.New(30 * time.Second)
		w.set(req)
	}
	w.set(to("good", good.URL))
	const events = 1000
	for range events {
		w.log.add("job.submitted", "a/b", "a")
	}
	began := time.Now()
	good.await(t, "all events", func() bool { return len(good.accepted) == events })
	t.Logf("%d events in %s beside three dead endpoints", events, time.Since(began))
	st := w.get("dead-1").GetStatus()
	if st.GetInFlight() != defaultParallel || st.GetPending() != delivery.MaxPending || st.GetUnread() == 0 || st.GetState() != nusav1.WebhookState_WEBHOOK_STATE_BEHIND {
		t.Errorf("%v", st)
	}
	await(t, "the alarm", &w.log.added, func() bool {
		return strings.Contains(strings.Join(w.state.Alarms(), "\n"), "dead-1, dead-2, dead-3; see nusa webhook list")
	})
}

// TestKilledInTheMiddleLosesNothing: the term ends without a last write, several times, while an
// endpoint refuses some events. Each event is accepted at least once, always with the same id.
func TestKilledInTheMiddleLosesNothing(t *testing.T) {
	w, e := newWorld(t), newEndpoint(t, func(n uint64, attempt int) int {
		if n%7 == 0 && attempt == 1 {
			return 500
		}
		return 200
	})
	w.set(to("hook", e.URL))
	const events = 400
	for i := range uint64(events) {
		w.log.add("job.submitted", "a/b", "a")
		if i%100 == 50 {
			e.await(t, "some events", func() bool { return len(e.accepted) > int(i)/2 })
			w.restart()
		}
	}
	w.awaitSaved("hook", "the cursor", func(p *nusav1.WebhookProgress) bool { return p.GetCursor() == events })
	w.restart()
	w.advance(10 * time.Second)
	e.await(t, "all events", func() bool { return len(e.accepted) == events })
	repeated := 0
	for n, ids := range e.ids {
		if len(ids) != 1 {
			t.Errorf("event %d has ids %v", n, ids)
		}
		repeated += e.accepted[n] - 1
	}
	t.Logf("%d of %d events were sent again", repeated, events)
	w.awaitSaved("hook", "nothing waits", func(p *nusav1.WebhookProgress) bool {
		return len(p.GetPending()) == 0 && p.GetDelivered() >= events-events/4
	})
}

// TestProgressIsStoredOnceASecond: the number of writes does not grow with the number of events.
func TestProgressIsStoredOnceASecond(t *testing.T) {
	w, e := newWorld(t), newEndpoint(t, always(200))
	w.set(to("hook", e.URL))
	w.mu.Lock()
	w.writes = 0
	w.mu.Unlock()
	began := time.Now()
	const events = 2000
	for range events {
		w.log.add("job.submitted", "a/b", "a")
	}
	w.awaitSaved("hook", "the cursor", func(p *nusav1.WebhookProgress) bool { return p.GetDelivered() == events })
	took := time.Since(began)
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Logf("%d events in %s, %d writes", events, took, w.writes)
	if most := int(took/saveEvery) + 1; w.writes > most || w.writes == 0 {
		t.Errorf("%d writes in %s", w.writes, took)
	}
}

func TestRetentionDropsWithAnAlarm(t *testing.T) {
	w, e := newWorld(t), newEndpoint(t, always(500))
	w.set(to("hook", e.URL))
	first := w.log.add("job.submitted", "a/b", "a")
	e.await(t, "an attempt", func() bool { return e.attempts[first] == 1 })
	w.awaitStatus("hook", "the failure", func(s *nusav1.WebhookStatus) bool { return s.GetFailed() == 1 })
	if _, err := w.api.Disable(t.Context(), &nusav1.DisableWebhookRequest{Name: "hook"}); err != nil {
		t.Fatal(err)
	}
	await(t, "disabled", &w.log.added, func() bool { return w.get("hook").GetStatus().GetState() == nusav1.WebhookState_WEBHOOK_STATE_DISABLED })
	for range 9 {
		w.log.add("job.submitted", "a/b", "a")
	}
	w.log.retain(6)
	e.setAnswer(always(200))
	if _, err := w.api.Enable(t.Context(), &nusav1.EnableWebhookRequest{Name: "hook"}); err != nil {
		t.Fatal(err)
	}
	e.await(t, "what retention left", func() bool { return len(e.accepted) == 4 })
	w.awaitStatus("hook", "six are dropped", func(s *nusav1.WebhookStatus) bool { return s.GetDropped() == 6 && s.GetPending() == 0 })
	await(t, "the alarm", &w.log.added, func() bool {
		return strings.Contains(strings.Join(w.state.Alarms(), "\n"), "hook; see nusa webhook list")
	})
}

func TestReplays(t *testing.T) {
	w, e := newWorld(t), newEndpoint(t, always(200))
	w.set(to("hook", e.URL))
	for range 20 {
		w.log.add("job.submitted", "a/b", "a")
	}
	e.await(t, "all", func() bool { return len(e.accepted) == 20 })
	replay := func(req *nusav1.ReplayWebhookRequest) (uint64, error) {
		req.Name = "hook"
		out, err := w.api.Replay(t.Context(), req)
		return out.GetEvents(), err
	}
	if n, err := replay(&nusav1.ReplayWebhookRequest{What: &nusav1.ReplayWebhookRequest_Id{Id: "fed-3"}}); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	e.await(t, "event 3 again", func() bool { return e.accepted[3] == 2 })
	if n, err := replay(&nusav1.ReplayWebhookRequest{What: &nusav1.ReplayWebhookRequest_From{From: 15}}); n != 6 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	e.await(t, "events from 15 again", func() bool { return e.accepted[15] == 2 && e.accepted[20] == 2 })
	if e.accepted[14] != 1 {
		t.Error("an event before the first one was sent again")
	}
	w.mustHave("webhook.replayed", "event 3, by an operator")
	w.mustHave("webhook.replayed", "all events from 15 on, by an operator")
	w.log.retain(10)
	for _, req := range []*nusav1.ReplayWebhookRequest{
		{What: &nusav1.ReplayWebhookRequest_Id{Id: "fed-4"}}, {What: &nusav1.ReplayWebhookRequest_Id{Id: "other-15"}}, {What: &nusav1.ReplayWebhookRequest_Id{Id: "fed-21"}},
		{What: &nusav1.ReplayWebhookRequest_From{From: 10}}, {What: &nusav1.ReplayWebhookRequest_From{From: 21}}, {What: &nusav1.ReplayWebhookRequest_From{}},
		{What: &nusav1.ReplayWebhookRequest_Id{Id: "nonsense"}}, {What: &nusav1.ReplayWebhookRequest_Id{Id: "fed-0"}}, {},
	} {
		if _, err := replay(req); err == nil {
			t.Errorf("%v is accepted", req)
		}
	}
}

func TestSkip(t *testing.T) {
	w, e := newWorld(t), newEndpoint(t, always(500))
	w.set(to("hook", e.URL))
	n := w.log.add("job.submitted", "a/b", "a")
	w.awaitStatus("hook", "the failure", func(s *nusav1.WebhookStatus) bool { return s.GetFailed() == 1 })
	e.setAnswer(always(200))
	if _, err := w.api.Enable(t.Context(), &nusav1.EnableWebhookRequest{Name: "hook", Skip: true}); err != nil {
		t.Fatal(err)
	}
	w.mustHave("webhook.skipped", "by an operator")
	later := w.log.add("job.submitted", "a/b", "a")
	e.await(t, "the later event", func() bool { return e.accepted[later] == 1 })
	w.advance(48 * time.Hour)
	w.awaitStatus("hook", "nothing waits", func(s *nusav1.WebhookStatus) bool { return s.GetPending() == 0 })
	if e.attempts[n] != 1 {
		t.Errorf("%d attempts of a skipped event", e.attempts[n])
	}
}

// TestCreatedAgain: a webhook that was removed and created again with the same name gets nothing that
// waited for the old one.
func TestCreatedAgain(t *testing.T) {
	w, old, e := newWorld(t), newEndpoint(t, always(500)), newEndpoint(t, always(200))
	w.set(to("hook", old.URL))
	n := w.log.add("job.submitted", "a/b", "a")
	w.awaitStatus("hook", "the failure", func(s *nusav1.WebhookStatus) bool { return s.GetFailed() == 1 })
	w.awaitSaved("hook", "the failure", func(p *nusav1.WebhookProgress) bool { return len(p.GetPending()) == 1 })
	if _, err := w.api.Remove(t.Context(), &nusav1.RemoveWebhookRequest{Name: "hook"}); err != nil {
		t.Fatal(err)
	}
	w.set(to("hook", e.URL))
	later := w.log.add("job.submitted", "a/b", "a")
	w.advance(time.Hour)
	e.await(t, "the later event", func() bool { return e.accepted[later] == 1 })
	if e.attempts[n] > 0 || old.attempts[n] != 1 {
		t.Errorf("%v %v", e.attempts, old.attempts)
	}
}
