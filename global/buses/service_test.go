package buses

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestBadBuses(t *testing.T) {
	w := newWorld(t, newBroker().dial)
	w.policy.AllowHTTP, w.policy.AllowPrivate = false, nil
	for field, change := range map[string]func(*nusav1.SetBusRequest){
		"bus.name: ":                                              func(r *nusav1.SetBusRequest) { r.Bus.Name = "A b" },
		"bus.broker.urls: nats:// is not":                         func(r *nusav1.SetBusRequest) { r.Bus.Broker.Urls = []string{natsURL} },
		"bus.broker.urls: requests to this":                       func(r *nusav1.SetBusRequest) { r.Bus.Broker.Urls = []string{"tls://127.0.0.1"} },
		"bus.broker.urls: 0 addresses":                            func(r *nusav1.SetBusRequest) { r.Bus.Broker = nil },
		"bus.description: ":                                       func(r *nusav1.SetBusRequest) { r.Bus.Description = strings.Repeat("a", 300) },
		"bus.types: types[0]":                                     func(r *nusav1.SetBusRequest) { r.Bus.Types = []string{"*job"} },
		"bus.types: types[0]: \"nope.*\": no event has this type": func(r *nusav1.SetBusRequest) { r.Bus.Types = []string{"nope.*"} },
		"bus.namespaces: namespaces[0]":                           func(r *nusav1.SetBusRequest) { r.Bus.Namespaces = []string{""} },
		"bus.filter: expression does not":                         func(r *nusav1.SetBusRequest) { r.Bus.Filter = `event.what == 1` },
		"bus.subject: ":                                           func(r *nusav1.SetBusRequest) { r.Bus.Subject = "a b" },
		"bus.exchange: NATS has no":                               func(r *nusav1.SetBusRequest) { r.Bus.Exchange = "e" },
		"bus.subject: RabbitMQ has no": func(r *nusav1.SetBusRequest) {
			r.Bus.Subject, r.Bus.Broker.Urls = "s", []string{"amqps://r.example.com"}
		},
		"secrets.password: ":                 func(r *nusav1.SetBusRequest) { r.Secrets.Password = strings.Repeat("pa55", 10_000) },
		"bus.broker.certificate: a certific": func(r *nusav1.SetBusRequest) { r.Secrets.Key = "pa55" },
	} {
		req := to("bus", "tls://nats.example.com")
		change(req)
		_, err := w.api.Set(t.Context(), req)
		problems := rpcerr.Problems(err)
		if status.Code(err) != codes.InvalidArgument || len(problems) != 1 || !strings.HasPrefix(problems[0].GetField()+": "+problems[0].GetMessage(), field) {
			t.Errorf("%s: %v, %v", field, err, problems)
		}
		if strings.Contains(fmt.Sprint(err), "pa55") {
			t.Errorf("a secret is in the error: %v", err)
		}
	}
	if _, err := w.api.Set(t.Context(), &nusav1.SetBusRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

func TestChanges(t *testing.T) {
	b := newBroker()
	w := newWorld(t, b.dial)
	req := to("bus", natsURL)
	first := w.set(req)
	if same := w.set(req); same.GetRevision() != first.GetRevision() {
		t.Errorf("the same bus again: %v", same)
	}
	for revision, want := range map[int64]codes.Code{-1: codes.Aborted, first.GetRevision() + 1: codes.Aborted, first.GetRevision(): codes.OK} {
		changed := proto.CloneOf(req)
		changed.Revision = revision
		if _, err := w.api.Set(t.Context(), changed); status.Code(err) != want {
			t.Errorf("revision %d: %v", revision, err)
		}
	}
	other := proto.CloneOf(req)
	other.Secrets, other.Bus.Description = nil, "changed"
	if got := w.set(other); !got.GetBroker().GetHasPassword() || got.GetRevision() <= first.GetRevision() {
		t.Errorf("%v", got)
	}
	other.Bus.Broker.Urls = []string{"nats://127.0.0.2:4222"}
	if _, err := w.api.Set(t.Context(), other); !strings.Contains(fmt.Sprint(rpcerr.Problems(err)), "give the password and the private key again") {
		t.Errorf("a password goes to another host: %v", err)
	}
	if _, err := w.api.Disable(t.Context(), &nusav1.DisableBusRequest{Name: "bus"}); err != nil {
		t.Fatal(err)
	}
	w.awaitStatus("bus", "disabled", func(s *nusav1.BusStatus) bool {
		return s.GetState() == nusav1.BusState_BUS_STATE_DISABLED && !s.GetConnected()
	})
	n := w.log.add("job.submitted", "a/b")
	w.restart()
	if got := w.get("bus"); !got.GetDisabled() || len(b.messages()) > 0 {
		t.Errorf("%v", got)
	}
	if _, err := w.api.Enable(t.Context(), &nusav1.EnableBusRequest{Name: "bus"}); err != nil {
		t.Fatal(err)
	}
	w.await("what waited", func() bool { return len(b.messages()) == 1 && b.messages()[0].ID == fmt.Sprint("fed-", n) })
	for i := range maxBuses - 1 {
		if _, err := w.api.Set(t.Context(), to(fmt.Sprint("bus-", i), natsURL)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.api.Set(t.Context(), to("one-more", natsURL)); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	for state, want := range map[nusav1.BusState]int{nusav1.BusState_BUS_STATE_DISABLED: 0, nusav1.BusState_BUS_STATE_OK: maxBuses} {
		w.await(fmt.Sprint(want, " buses in ", state), func() bool {
			list, err := w.api.List(t.Context(), &nusav1.ListBusesRequest{States: []nusav1.BusState{state}})
			return err == nil && len(list.GetBuses()) == want
		})
	}
	if list, err := w.api.List(t.Context(), nil); err != nil || len(list.GetBuses()) != maxBuses || list.GetBuses()[0].GetName() != "bus" {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := w.api.Delete(t.Context(), &nusav1.DeleteBusRequest{Name: "bus"}); err != nil {
		t.Error(err)
	}
	for _, err := range []error{
		second(w.api.Delete(t.Context(), &nusav1.DeleteBusRequest{Name: "bus"})), second(w.api.Get(t.Context(), &nusav1.GetBusRequest{Name: "bus"})),
		second(w.api.Test(t.Context(), &nusav1.TestBusRequest{Name: "bus"})), second(w.api.Enable(t.Context(), &nusav1.EnableBusRequest{Name: "bus"})),
	} {
		if status.Code(err) != codes.NotFound {
			t.Error(err)
		}
	}
	if _, ok := w.term.progress.Get("bus"); ok {
		t.Error("the progress of a deleted bus is stored")
	}
}

func second[T any](_ T, err error) error { return err }

func TestTest(t *testing.T) {
	b := newBroker()
	w := newWorld(t, b.dial)
	w.set(to("bus", natsURL))
	out, err := w.api.Test(t.Context(), &nusav1.TestBusRequest{Name: "bus"})
	if err != nil || out.GetError() != "" || len(b.messages()) != 1 || b.messages()[0].ID != out.GetId() || b.messages()[0].Key != "bus.test" {
		t.Errorf("%v, %v", out, err)
	}
	b.set(func() { b.down = true })
	if out, err = w.api.Test(t.Context(), &nusav1.TestBusRequest{Name: "bus"}); err != nil || out.GetError() != errDown.Error() {
		t.Errorf("%v, %v", out, err)
	}
}

// TestATermThatEndsEarly: a call returns when the term ends before it has read the records.
func TestATermThatEndsEarly(t *testing.T) {
	w := newWorld(t, newBroker().dial)
	w.end()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	term := NewTerm(w.term.Config)
	if err := term.Run(gone); err == nil {
		t.Fatal("the term has read the records")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := (&Server{Current: func() *Term { return term }}).List(ctx, nil); status.Code(err) != codes.Unavailable || ctx.Err() != nil {
		t.Errorf("%v", err)
	}
}
