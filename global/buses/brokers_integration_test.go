//go:build integration

package buses

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/broker"
	"github.com/nusa-scheduler/nusa/internal/broker/brokertest"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// server is a real broker.
type server interface {
	Start()
	Kill()
}

// survive publishes events to a broker that is killed in the middle, while a term ends without a last
// write. published returns what the broker has. Every event is there, and a repetition has the same id.
func survive(t *testing.T, w *world, s server, published func() []brokertest.Message) {
	t.Helper()
	const events = 4000
	for i := range events {
		w.log.add("job.submitted", fmt.Sprint("a/", i))
		switch i {
		case 1000:
			w.await("some messages", func() bool { return w.get("bus").GetStatus().GetPublished() > uint64(i/4) })
			s.Kill()
			w.awaitStatus("bus", "a failure", func(s *nusav1.BusStatus) bool { return s.GetFailed() > 0 })
		case 1500:
			w.restart()
			s.Start()
		}
	}
	w.awaitStatus("bus", "everything", func(s *nusav1.BusStatus) bool {
		w.advance(time.Minute)
		return s.GetLag() == 0
	})
	var all []broker.Message
	for _, m := range published() {
		if !strings.HasSuffix(m.Key, "job.submitted") {
			t.Errorf("key %q", m.Key)
		}
		if !strings.Contains(string(m.Body), `"id":"`+m.ID+`"`) {
			t.Errorf("message %q has the body %s", m.ID, m.Body)
		}
		all = append(all, broker.Message{ID: m.ID})
	}
	got, repeated := ids(t, all), 0
	for _, n := range got {
		repeated += n - 1
	}
	t.Logf("%d of %d events are there twice", repeated, events)
	if len(got) != events {
		t.Errorf("%d of %d events", len(got), events)
	}
}

func toReal(url string) *nusav1.SetBusRequest {
	return &nusav1.SetBusRequest{
		Bus:     &nusav1.Bus{Name: "bus", Broker: &nusav1.Broker{Urls: []string{url}, User: "nusa"}, Types: []string{"job.*"}},
		Secrets: &nusav1.BrokerSecrets{Password: brokertest.Password},
	}
}

// testError publishes a test event, and returns the error.
func (w *world) testError() string {
	w.t.Helper()
	out, err := w.api.Test(w.t.Context(), &nusav1.TestBusRequest{Name: "bus"})
	if err != nil {
		w.t.Fatal(err)
	}
	return out.GetError()
}

func TestNATSKilledInTheMiddle(t *testing.T) {
	n := brokertest.StartNATS(t)
	w := newWorld(t, nil)
	w.set(toReal(n.URL()))
	if got := w.testError(); !strings.Contains(got, "no stream has it") {
		t.Errorf("without a stream: %s", got)
	}
	n.Stream("events", "nusa.events.>")
	if got := w.testError(); got != "" {
		t.Errorf("with a stream: %s", got)
	}
	survive(t, w, n, func() []brokertest.Message { return n.Messages("events")[1:] })
	bad := toReal(n.URL())
	bad.Secrets.Password = "wrong-password"
	w.set(bad)
	w.awaitStatus("bus", "a wrong password", func(s *nusav1.BusStatus) bool {
		w.log.add("job.submitted", "a/b") // the worker may still have the earlier password for a moment
		w.advance(time.Minute)
		return strings.Contains(s.GetLastError(), "uthorization") && !strings.Contains(s.GetLastError(), "wrong-password")
	})
}

func TestRabbitKilledInTheMiddle(t *testing.T) {
	r := brokertest.StartRabbit(t)
	w := newWorld(t, nil)
	w.set(toReal(r.URL()))
	if got := w.testError(); !strings.Contains(got, "no queue is bound") {
		t.Errorf("without a queue: %s", got)
	}
	r.Queue("events", defaultPlace)
	if got := w.testError(); got != "" {
		t.Errorf("with a queue: %s", got)
	}
	survive(t, w, r, func() []brokertest.Message { return r.Messages("events")[1:] })
	last := ""
	t.Cleanup(func() { t.Log("the latest error:", last) })
	bad := toReal(r.URL())
	bad.Secrets.Password = "wrong-password"
	w.set(bad)
	w.awaitStatus("bus", "a wrong password", func(s *nusav1.BusStatus) bool {
		w.log.add("job.submitted", "a/b") // the worker may still have the earlier password for a moment
		w.advance(time.Minute)
		last = s.GetLastError()
		return strings.Contains(s.GetLastError(), "ACCESS_REFUSED") || strings.Contains(s.GetLastError(), "username or password")
	})
}
