//go:build integration

package intakes

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/broker"
	"github.com/nusa-scheduler/nusa/internal/broker/brokertest"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const messages = 1500

// publish publishes job files with ids, as another system does. Two of them are bad.
func publish(t *testing.T, url string, to broker.Sink, key string) {
	t.Helper()
	target, problems := broker.NewTarget(broker.Settings{URLs: []string{url}, User: "nusa", Password: broker.NewSecret(brokertest.Password)}, policyOfTests())
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	p, err := broker.NewPublisher(t.Context(), target, to)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	all := []broker.Message{{ID: "bad", Key: key, Body: []byte("name: [")}, {ID: "wrong", Key: key, Body: []byte("namespace: web\n" + jobFile("a"))}}
	for i := range messages {
		all = append(all, broker.Message{ID: fmt.Sprint("m", i), Key: key, ContentType: "application/yaml", Body: []byte(jobFile(fmt.Sprint("job-", i)))})
	}
	for len(all) > 0 {
		n, err := p.Publish(t.Context(), all[:min(len(all), broker.MaxBatch)])
		if err != nil {
			t.Fatal(err)
		}
		all = all[n:]
	}
}

// survive takes jobs from a broker that is killed in the middle, while the system is full for a moment and a term
// ends without a last write. Every job is submitted, with one idempotency key, and bad messages are dead letters.
func survive(t *testing.T, w *world, kill, start func(), dead func() []brokertest.Message) {
	t.Helper()
	taken := func(n int) func() bool { return func() bool { return len(w.jobs()) >= n } }
	w.await("some jobs", taken(messages/8))
	kill()
	w.await("no connection", func() bool { return !w.get("orders").GetStatus().GetConnected() })
	w.restart()
	w.setFault(status.Error(codes.ResourceExhausted, "the store is full"))
	start()
	w.await("a full system", func() bool { w.advance(1e9); return w.get("orders").GetStatus().GetLastError() == "the store is full" })
	w.setFault(nil)
	w.await("every job", func() bool { w.advance(60e9); return taken(messages)() })
	w.mu.Lock()
	repeated := 0
	for _, n := range w.keys {
		repeated += n - 1
	}
	t.Logf("%d of %d messages came again", repeated, messages)
	if len(w.keys) != messages {
		t.Errorf("%d idempotency keys", len(w.keys))
	}
	w.mu.Unlock()
	var letters []brokertest.Message
	w.await("the dead letters", func() bool { letters = append(letters, dead()...); return len(letters) >= 2 })
	for _, m := range letters {
		reason := m.Headers[broker.ReasonHeader]
		if !strings.Contains(reason, "message:1") && !strings.Contains(reason, `the job is for "web"`) {
			t.Errorf("dead letter %s has the reason %q", m.ID, reason)
		}
	}
}

func TestTakesFromNATS(t *testing.T) {
	n := brokertest.StartNATS(t)
	n.Stream("JOBS", "jobs.>")
	n.Stream("DEAD", "nusa.dead.>")
	publish(t, n.URL(), broker.Sink{Subject: "jobs"}, "new")
	w := newWorld(t, nil)
	req := from("orders", n.URL())
	req.Secrets.Password, req.Intake.Stream, req.Intake.Subject = brokertest.Password, "JOBS", "jobs.*"
	w.set(req)
	survive(t, w, n.Kill, n.Start, func() []brokertest.Message { return n.Messages("DEAD") })
}

// TestOwnDeadLetters: an intake whose consumer would take its own dead letters takes nothing, and says why. It says
// so, too, if the consumer takes another subject. A stream that is made again has new messages.
func TestOwnDeadLetters(t *testing.T) {
	n := brokertest.StartNATS(t)
	n.Stream("ALL", "jobs.>", "nusa.dead.>")
	publish := func(id string) {
		t.Helper()
		if _, err := n.Connect().Publish(t.Context(), "jobs.new", []byte(jobFile(id))); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t, nil)
	req := from("orders", n.URL())
	req.Secrets.Password, req.Intake.Stream = brokertest.Password, "ALL"
	fault := func(text string) func() bool {
		return func() bool { return strings.Contains(w.get("orders").GetStatus().GetLastError(), text) }
	}
	w.set(req)
	w.await("the reason", fault(`it takes "nusa.dead.orders", the subject of its dead letters`))
	req.Intake.Subject = "jobs.*"
	w.set(req)
	publish("a")
	w.await("a job", func() bool { w.advance(60e9); return len(w.jobs()) == 1 })
	req.Intake.Subject = "jobs.>"
	w.set(req)
	w.await("the reason", fault(`it takes the subjects ["jobs.*"], and not "jobs.>"`))
	if err := n.Connect().DeleteStream(t.Context(), "ALL"); err != nil {
		t.Fatal(err)
	}
	n.Stream("ALL", "jobs.>", "nusa.dead.>")
	publish("b")
	w.await("a job of the new stream", func() bool { w.advance(60e9); return len(w.jobs()) == 2 })
}

// TestGreatestMessage: a bad message that is as large as the server takes is a dead letter without its body.
func TestGreatestMessage(t *testing.T) {
	n := brokertest.StartNATS(t)
	n.Stream("JOBS", "jobs.>")
	n.Stream("DEAD", "nusa.dead.>")
	if _, err := n.Connect().Publish(t.Context(), "jobs.new", append([]byte("name: ["), make([]byte, 1<<20-7)...)); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, nil)
	req := from("orders", n.URL())
	req.Secrets.Password, req.Intake.Stream = brokertest.Password, "JOBS"
	w.set(req)
	w.await("the dead letter", func() bool { return w.get("orders").GetStatus().GetDead() == 1 })
	if all := n.Messages("DEAD"); len(all) != 1 || !strings.Contains(all[0].Headers[broker.ReasonHeader], "1048576 bytes is left out") {
		t.Errorf("%d dead letters", len(all))
	}
}

func TestTakesFromRabbit(t *testing.T) {
	r := brokertest.StartRabbit(t)
	w := newWorld(t, nil)
	req := from("orders", r.URL())
	req.Secrets.Password, req.Intake.Exchange, req.Intake.Keys = brokertest.Password, "jobs", []string{"jobs.#"}
	w.set(req)
	w.await("a connection", func() bool { w.advance(1e9); return w.get("orders").GetStatus().GetConnected() })
	publish(t, r.URL(), broker.Sink{Exchange: "jobs"}, "jobs.new")
	survive(t, w, r.Kill, r.Start, func() []brokertest.Message { return r.Messages("nusa.intake.orders.dead") })
	w.await("an empty queue", func() bool {
		return w.get("orders").GetStatus().GetState() == nusav1.BusState_BUS_STATE_OK
	})
}
