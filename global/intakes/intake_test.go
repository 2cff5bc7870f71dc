package intakes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/broker"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/rights"
)

const rabbitURL = "amqp://127.0.0.1:5672"

func TestRequests(t *testing.T) {
	in := &nusav1.Intake{Name: "orders", Namespace: "pay"}
	good := func(id, body string) *broker.Delivery { return &broker.Delivery{ID: id, Body: []byte(body)} }
	for want, d := range map[string]*broker.Delivery{
		"no message-id":        good("", jobFile("api")),
		"greater than":         {ID: "1", TooLarge: true},
		"message:1:8":          good("1", `{"name": `),
		"the job is for \"x\"": good("1", "namespace: x\n"+jobFile("api")),
		"2 YAML documents":     good("1", jobFile("a")+"---\n"+jobFile("b")),
		"grops":                good("1", "name: a\ngrops: {}\n"),
		"message":              good("1", "\x00\xff\xfe"),
	} {
		if _, bad := request(in, "id1", d); !strings.Contains(bad, want) || len(bad) > maxReason+8 {
			t.Errorf("%s: %q", want, bad)
		}
	}
	req, bad := request(in, "id1", good("1", jobFile("api")))
	again, _ := request(in, "id1", good("1", jobFile("api")))
	json, badJSON := request(in, "id1", good("2", `{"name": "api", "groups": {"web": {"tasks": {"t": {"driver": "process", "config": {"command": "/bin/true"}, "resources": {"cpu": "10m", "memory": "1MiB"}}}}}}`))
	if bad != "" || badJSON != "" || req.GetSpec().GetNamespace() != "pay" || req.GetIdempotencyKey() == "" || req.GetIdempotencyKey() != again.GetIdempotencyKey() || json.GetIdempotencyKey() == req.GetIdempotencyKey() {
		t.Errorf("%v %v %v %v %v", bad, badJSON, req, again, json)
	}
	if other, _ := request(in, "id2", good("1", jobFile("api"))); other.GetIdempotencyKey() == req.GetIdempotencyKey() {
		t.Error("an intake that was created again takes the messages of the earlier one for its own")
	}
	if n := len(req.GetIdempotencyKey()); n > 128 || strings.Contains(req.GetIdempotencyKey(), "/") {
		t.Errorf("key of %d bytes", n)
	}
}

func TestDecide(t *testing.T) {
	for code, want := range map[codes.Code]verdict{
		codes.OK: taken, codes.ResourceExhausted: hold, codes.Unavailable: hold, codes.DeadlineExceeded: hold, codes.Canceled: hold,
		codes.Internal: hold, codes.Unauthenticated: hold, codes.Unknown: hold, codes.Aborted: hold,
		codes.InvalidArgument: bury, codes.NotFound: bury, codes.AlreadyExists: bury, codes.PermissionDenied: bury, codes.FailedPrecondition: bury,
	} {
		if got := decide(status.Error(code, "x")); got != want {
			t.Errorf("%s: %d, want %d", code, got, want)
		}
	}
}

func TestTakesJobsInOrder(t *testing.T) {
	b := newBroker()
	w := newWorld(t, b.dial)
	for i := range 300 {
		b.add(fmt.Sprint("m", i), jobFile(fmt.Sprint("job-", i)))
	}
	b.add("bad", "name: [")
	b.add("m7", jobFile("job-7")) // again
	b.add("other", jobFile("job-8"))
	w.set(from("orders", rabbitURL))
	w.await("all messages", func() bool { acked, buried, _ := b.count(); return acked == 302 && buried == 1 })
	got := w.jobs()
	for i := range 300 {
		if got[i] != fmt.Sprint("default/job-", i) {
			t.Fatalf("job %d is %s", i, got[i])
		}
	}
	if len(got) != 301 || got[300] != "default/job-8" {
		t.Errorf("%d jobs, then %v", len(got), got[300:])
	}
	st := w.get("orders").GetStatus()
	if st.GetTaken() != 302 || st.GetDead() != 1 || !strings.Contains(st.GetLastDead(), "message:1") || st.GetState() != nusav1.BusState_BUS_STATE_OK || !st.GetConnected() {
		t.Errorf("%v", st)
	}
}

// TestAFullSystemSlowsTheIntake: while submits fail as the store is full, messages wait at the broker, bounded,
// none is a dead letter, and all are taken later.
func TestAFullSystemSlowsTheIntake(t *testing.T) {
	b := newBroker()
	w := newWorld(t, b.dial)
	w.setFault(status.Error(codes.ResourceExhausted, "the store is full"))
	req := from("orders", rabbitURL)
	req.Intake.InFlight = 8
	w.set(req)
	for i := range 100 {
		b.add(fmt.Sprint("m", i), jobFile(fmt.Sprint("job-", i%5)))
	}
	for i := range 6 {
		w.await("an attempt", func() bool { return w.get("orders").GetStatus().GetFailed() > uint64(i) })
		w.advance(2 * time.Minute)
	}
	acked, buried, unacked := b.count()
	if acked > 0 || buried > 0 || unacked > 8 {
		t.Errorf("%d acknowledged, %d dead, %d in flight", acked, buried, unacked)
	}
	st := w.get("orders").GetStatus()
	if st.GetState() != nusav1.BusState_BUS_STATE_FAILING || st.GetLastError() != "the store is full" || b.held == 0 {
		t.Errorf("%v, held %d times", st, b.held)
	}
	w.await("the alarm", func() bool {
		w.term.alarm()
		return strings.Contains(strings.Join(w.state.Alarms(), "\n"), "messages wait too long for intakes: orders; see nusa intake list")
	})
	w.setFault(nil)
	w.await("all messages", func() bool { w.advance(time.Minute); acked, _, _ := b.count(); return acked == 100 })
	for i, name := range w.jobs() {
		if name != fmt.Sprint("default/job-", i%5) {
			t.Fatalf("job %d is %s: the order is not that of the messages", i, name)
		}
	}
}

// TestNoDeadLetters: while the broker takes no dead letter, the intake fails with longer and longer pauses and an
// alarm, although each connection opens.
func TestNoDeadLetters(t *testing.T) {
	b := newBroker()
	w := newWorld(t, b.dial)
	b.refuse(errors.New("no stream has it"))
	b.add("bad", "name: [")
	w.set(from("orders", rabbitURL))
	for i := range 6 {
		w.await("an attempt", func() bool { return w.get("orders").GetStatus().GetFailed() > uint64(i) })
		w.advance(2 * time.Minute)
	}
	w.await("a further attempt", func() bool { return w.get("orders").GetStatus().GetFailed() > 6 })
	if next := w.get("orders").GetStatus().GetNextAttempt().AsTime().Sub(w.now()); next < 50*time.Second {
		t.Errorf("the pause after seven attempts is %s", next)
	}
	w.await("the alarm", func() bool {
		w.term.alarm()
		return strings.Contains(strings.Join(w.state.Alarms(), "\n"), "intakes: orders")
	})
	b.refuse(nil)
	w.await("the dead letter", func() bool { w.advance(time.Minute); _, buried, _ := b.count(); return buried == 1 })
	w.await("no fault", func() bool {
		return w.get("orders").GetStatus().GetState() == nusav1.BusState_BUS_STATE_OK
	})
}

// TestKilledInTheMiddle: connections and terms end while messages are taken. Each job is submitted, with one
// idempotency key.
func TestKilledInTheMiddle(t *testing.T) {
	b := newBroker()
	w := newWorld(t, b.dial)
	w.set(from("orders", rabbitURL))
	const messages = 2000
	for i := range messages {
		b.add(fmt.Sprint("m", i), jobFile(fmt.Sprint("job-", i)))
		switch i % 500 {
		case 100:
			b.drop(false)
		case 200:
			w.restart()
		case 300:
			b.drop(true)
			w.await("no connection", func() bool { return !w.get("orders").GetStatus().GetConnected() })
			b.drop(false)
			w.advance(time.Minute)
		}
	}
	w.await("all messages", func() bool {
		w.advance(time.Minute)
		acked, _, unacked := b.count()
		return acked == messages && unacked == 0
	})
	if got := w.jobs(); len(got) != messages {
		t.Errorf("%d of %d jobs", len(got), messages)
	}
	if len(w.keys) != messages {
		t.Errorf("%d keys", len(w.keys))
	}
}

func TestBadIntakes(t *testing.T) {
	w := newWorld(t, newBroker().dial)
	for field, change := range map[string]func(*nusav1.Intake){
		"intake.name: ":                      func(i *nusav1.Intake) { i.Name = "A" },
		"intake.in_flight: ":                 func(i *nusav1.Intake) { i.InFlight = 257 },
		"intake.queue: ":                     func(i *nusav1.Intake) { i.Queue = "amq.q" },
		"intake.keys: ":                      func(i *nusav1.Intake) { i.Exchange, i.Keys = "e", make([]string, 17) },
		"intake.exchange: keys bind":         func(i *nusav1.Intake) { i.Keys = []string{"a"} },
		"intake.dead_letter: the queue":      func(i *nusav1.Intake) { i.Queue, i.DeadLetter = "q", "q" },
		"intake.stream: RabbitMQ has no":     func(i *nusav1.Intake) { i.Stream = "S" },
		"intake.stream: \"\": give the name": func(i *nusav1.Intake) { i.Broker.Urls = []string{"nats://127.0.0.1"} },
		"intake.queue: NATS has no queues":   func(i *nusav1.Intake) { i.Broker.Urls, i.Stream, i.Queue = []string{"nats://127.0.0.1"}, "S", "q" },
		"intake.subject: ":                   func(i *nusav1.Intake) { i.Broker.Urls, i.Stream, i.Subject = []string{"nats://127.0.0.1"}, "S", "a..b" },
		"intake.broker.urls: requests":       func(i *nusav1.Intake) { i.Broker.Urls = []string{"amqps://10.0.0.1"} },
	} {
		req := from("orders", rabbitURL)
		change(req.Intake)
		_, err := w.api.Set(t.Context(), req)
		problems := rpcerr.Problems(err)
		if status.Code(err) != codes.InvalidArgument || len(problems) != 1 || !strings.HasPrefix(problems[0].GetField()+": "+problems[0].GetMessage(), field) {
			t.Errorf("%s: %v, %v", field, err, problems)
		}
	}
	if _, err := w.api.Set(t.Context(), &nusav1.SetIntakeRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a request without an intake: %v", err)
	}
	ok := from("nats", "nats://127.0.0.1")
	ok.Intake.Stream, ok.Intake.Subject = "JOBS", "jobs.*.new.>"
	if got := w.set(ok); got.GetDeadLetter() != "nusa.dead.nats" || got.GetInFlight() != 32 || strings.Contains(got.String(), "pa55") {
		t.Errorf("%v", got)
	}
	if _, err := w.api.Disable(t.Context(), &nusav1.DisableIntakeRequest{Name: "nats"}); err != nil {
		t.Error(err)
	}
	w.await("disabled", func() bool {
		st := w.get("nats").GetStatus()
		return st.GetState() == nusav1.BusState_BUS_STATE_DISABLED && !st.GetConnected()
	})
	for state, want := range map[nusav1.BusState]int{nusav1.BusState_BUS_STATE_DISABLED: 1, nusav1.BusState_BUS_STATE_OK: 0} {
		if list, err := w.api.List(t.Context(), &nusav1.ListIntakesRequest{States: []nusav1.BusState{state}}); err != nil || len(list.GetIntakes()) != want {
			t.Errorf("%v: %v, %v", state, list, err)
		}
	}
	if _, err := w.api.List(t.Context(), &nusav1.ListIntakesRequest{States: []nusav1.BusState{7}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an unknown state: %v", err)
	}
	if list, err := w.api.List(t.Context(), nil); err != nil || len(list.GetIntakes()) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := w.api.Delete(t.Context(), &nusav1.DeleteIntakeRequest{Name: "nats"}); err != nil {
		t.Error(err)
	}
	if _, err := w.api.Enable(t.Context(), &nusav1.EnableIntakeRequest{Name: "nats"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

// TestRightsOfAnIntake: the rights are those that the principal has now.
func TestRightsOfAnIntake(t *testing.T) {
	now := time.Now()
	set, err := rights.New(&nusav1.AuthSet{
		Version:  1,
		Bindings: []*nusav1.AuthBinding{{Name: "b", Role: "submitter", Subjects: []string{"operator/jane", "user/*@corp"}, Namespaces: []string{"pay"}}},
		Tokens: []*nusav1.AccessToken{
			{Accessor: "aaaaaaaa", Roles: []string{"submitter"}, Created: timestamppb.New(now), Expires: timestamppb.New(now.Add(time.Hour))},
			{Accessor: "cccccccc", User: "user/ann@corp", Created: timestamppb.New(now), Expires: timestamppb.New(now.Add(time.Hour))},
		},
		Providers: []*nusav1.AuthProvider{{Name: "corp"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		principal, namespace string
		at                   time.Duration
		want                 string
	}{
		{"operator/jane", "pay", 0, ""}, {"operator/jane", "web", 0, "may not submit"}, {"operator/joe", "pay", 0, "may not submit"},
		{"token/aaaaaaaa", "pay", 0, ""}, {"token/aaaaaaaa", "pay", 2 * time.Hour, "has expired"}, {"token/bbbbbbbb", "pay", 0, "there is no token"},
		{"user/ann@corp", "pay", 0, ""}, {"user/ann@corp", "pay", 2 * time.Hour, "has expired"}, {"user/bob@corp", "pay", 0, "has expired or was revoked"},
		{"nonsense", "pay", 0, "is not a principal"}, {"operator/root", "pay", 0, "may not submit"},
	} {
		call, err := callOf(set, c.principal, c.namespace, now.Add(c.at))
		if (err == nil) != (c.want == "") || err != nil && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s in %s: %v, want %q", c.principal, c.namespace, err, c.want)
		}
		if err == nil && call.Who.Name != c.principal {
			t.Errorf("%s: the call is that of %s", c.principal, call.Who.Name)
		}
	}
	w := newWorld(t, newBroker().dial)
	w.term.Secure = true
	if _, err := w.api.Set(t.Context(), from("orders", rabbitURL)); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an intake without a principal is stored: %v", err)
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
