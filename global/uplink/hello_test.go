package uplink

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// committing returns a server with a committer that does not run yet, and a function that starts
// the committer.
func committing(t *testing.T) (s *Server, run func()) {
	t.Helper()
	mem := store.NewMemory().Client()
	t.Cleanup(func() { mem.Close() })
	e, err := mem.Campaign(t.Context(), state.ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	st := state.New(state.Beginning{Epoch: "e", Sessions: region.Config{
		Lease: time.Hour, ActiveUntil: 1 << 62, Federation: "fed", Term: region.Term{Number: 1, Nonce: "n"},
	}}, func() time.Duration { return 0 })
	commit := state.NewCommitter(st, mem, e.Guard())
	ctx, cancel := context.WithCancel(context.Background())
	var done chan struct{}
	t.Cleanup(func() {
		cancel()
		if done != nil {
			<-done
		}
		if err := e.Resign(context.Background()); err != nil {
			t.Error(err)
		}
	})
	s = New(Config{Context: ctx, State: st, Commit: commit, Log: slog.New(slog.DiscardHandler), WakePlacer: func() {}})
	return s, func() {
		done = make(chan struct{})
		go func() {
			defer close(done)
			_ = commit.Run(ctx)
		}()
	}
}

// begin queues a request and returns a function that waits for its end.
func begin(t *testing.T, s *Server, prepare func(*state.Tx) error) (wait func()) {
	done := make(chan error, 1)
	go func() {
		_, err := s.Commit.Do(t.Context(), prepare)
		done <- err
	}()
	return func() {
		t.Helper()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// declare queues the verdict that a region is lost.
func declare(t *testing.T, s *Server, name string) (wait func()) {
	return begin(t, s, func(t *state.Tx) error {
		old, _ := t.Region(name)
		next := proto.CloneOf(old)
		next.Fence++
		next.Lost = &nusav1.LostRegion{Fence: next.Fence}
		return t.PutRegion(name, next)
	})
}

// TestVerdictBetweenHelloAndTransaction: a verdict is written while a hello waits for its
// transaction. The hello does not undo the verdict's fence.
func TestVerdictBetweenHelloAndTransaction(t *testing.T) {
	synctest.Test(t, verdictBetweenHelloAndTransaction)
}

func verdictBetweenHelloAndTransaction(t *testing.T) {
	s, run := committing(t)
	define := begin(t, s, func(t *state.Tx) error {
		return t.PutRegion("alpha", &nusav1.Region{
			Definition: &nusav1.RegionDefinition{Name: "alpha"}, ClusterId: "c", Incarnation: 1, Term: 1, Fence: 4,
		})
	})
	synctest.Wait() // the requests are queued in this order
	verdict := declare(t, s, "alpha")
	synctest.Wait()
	hello := make(chan error, 1)
	go func() {
		hello <- s.register(t.Context(), s.newSession(func(error) {}), &nusav1.RegionHello{
			Definition: &nusav1.RegionDefinition{Name: "alpha"}, ClusterId: "c", Incarnation: 1, Term: 2, Fence: 4,
		})
	}()
	synctest.Wait() // the hello has read the state, or reads it within its transaction
	run()
	define()
	verdict()
	if err := <-hello; err != nil {
		t.Fatal(err)
	}
	s.st.Lock()
	defer s.st.Unlock()
	r := s.st.Regions["alpha"]
	if r.Record.GetFence() != 5 || r.Life.Fence != 5 || r.Record.GetTerm() != 2 || r.Record.GetLost() != nil {
		t.Errorf("after the hello the record is %v, the session has fence %d", r.Record, r.Life.Fence)
	}
}

// TestVerdictBetweenTransactionAndWelcome: a region is declared lost after its hello was
// registered. The hello is registered again before the welcome.
func TestVerdictBetweenTransactionAndWelcome(t *testing.T) {
	s, run := committing(t)
	run()
	h := &nusav1.RegionHello{Definition: &nusav1.RegionDefinition{Name: "alpha"}, ClusterId: "c", Incarnation: 1, Term: 2}
	c := s.newSession(func(error) {})
	c.region = "alpha"
	if err := s.register(t.Context(), c, h); err != nil {
		t.Fatal(err)
	}
	declare(t, s, "alpha")()
	if welcomed, err := s.welcome(c, h); welcomed || err != nil {
		t.Fatalf("welcomed as lost: %t, %v", welcomed, err)
	}
	if err := s.register(t.Context(), c, h); err != nil {
		t.Fatal(err)
	}
	if welcomed, err := s.welcome(c, h); !welcomed || err != nil {
		t.Fatalf("not welcomed: %v", err)
	}
	w := c.outbox.take().GetWelcome()
	if w.GetFence() != 1 || w.GetFederationId() != "fed" || w.GetLeadershipTerm().GetNumber() != 1 {
		t.Errorf("welcome %v", w)
	}
	// A verdict during the session ends it: nothing more is granted or ordered on this stream.
	ended := false
	c.shared.Refuse = func(string) { ended = true }
	declare(t, s, "alpha")()
	for range c.outbox.len() {
		c.outbox.take()
	}
	s.ackOrders(c, &nusav1.Position{Epoch: "e", Sequence: 1 << 40}, 0)
	s.requestLease(c, &nusav1.LeaseRequest{Id: 1}, 0)
	if c.outbox.len() > 0 || c.next() != nil || !ended {
		t.Errorf("after the verdict %d messages are sent; the session has ended: %t", c.outbox.len(), ended)
	}
}

// TestProtocols: the server also understands the protocol versions before and after its own.
func TestProtocols(t *testing.T) {
	for version, understood := range map[int32]bool{protocol - 2: false, protocol - 1: true, protocol: true, protocol + 1: true, protocol + 2: false} {
		err := checkHello(&nusav1.RegionHello{Definition: &nusav1.RegionDefinition{Name: "alpha"}, ClusterId: "c", Protocol: version})
		var refused *refusal
		if got := err == nil; got != understood || !got && !errors.As(err, &refused) {
			t.Errorf("protocol %d: %v", version, err)
		}
	}
}

// TestAnotherClusterGetsNewOffers: an operator stated that nothing runs in a region, and another
// cluster takes its name. The new cluster gets each slot as a new offer, so no epoch repeats. A
// cluster that is refused, or that has the name already, changes nothing.
func TestAnotherClusterGetsNewOffers(t *testing.T) {
	s, run := committing(t)
	run()
	slot := region.Slot{Namespace: "default", Job: "api", Group: "web", To: 3, Region: "alpha", State: region.Accepted, Desired: region.DesiredRun}
	put := func(lost *nusav1.LostRegion) {
		t.Helper()
		begin(t, s, func(t *state.Tx) error {
			next := &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "alpha"}, ClusterId: "old", Incarnation: 1, Term: 1, Lost: lost}
			return errors.Join(t.PutRegion("alpha", next), t.ChangeSlots([]region.Change{{Slot: slot}}))
		})()
	}
	now := func() region.Slot {
		s.st.Lock()
		defer s.st.Unlock()
		for _, j := range s.st.Jobs {
			for is := range j.Slots.All() {
				slot = is
			}
		}
		return slot
	}
	hello := func(cluster string) {
		t.Helper()
		if err := offerAgain(t.Context(), s, s.newSession(func(error) {}), &nusav1.RegionHello{
			Definition: &nusav1.RegionDefinition{Name: "alpha"}, ClusterId: cluster, Incarnation: 1, Term: 1,
		}); err != nil {
			t.Fatal(err)
		}
	}
	put(nil)
	before := now()
	hello("new") // refused
	put(&nusav1.LostRegion{NothingRuns: true})
	hello("old")
	if is := now(); is.Generation != before.Generation || is.State != region.Accepted {
		t.Errorf("without another cluster: %s of generation %d, before %d", is, is.Generation, before.Generation)
	}
	hello("new")
	if is := now(); is.Generation <= before.Generation || is.State != region.Offered || is.Region != "alpha" {
		t.Errorf("for another cluster: %s of generation %d, before %d", is, is.Generation, before.Generation)
	}
}
