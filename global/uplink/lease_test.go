package uplink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/sets"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// script is a stream with messages that a region has sent before.
type script struct {
	grpc.ServerStream
	messages []*nusav1.RegionMessage
}

func (s *script) Recv() (*nusav1.RegionMessage, error) {
	if len(s.messages) == 0 {
		return nil, io.EOF
	}
	m := s.messages[0]
	s.messages = s.messages[1:]
	return m, nil
}

func (s *script) Send(*nusav1.GlobalMessage) error { return nil }

// TestLeasesDoNotWaitForAnswers: a lease request that arrives after an answer is granted while the
// store has not yet taken the answer, and also while the answer waits for a place in the queue of the
// committer.
func TestLeasesDoNotWaitForAnswers(t *testing.T) {
	for name, full := range map[string]bool{"the answer is queued": false, "the queue is full": true} {
		synctest.Test(t, func(t *testing.T) {
			s, run := committing(t)
			c := s.newSession(func(err error) { t.Errorf("%s: the session ends: %v", name, err) })
			c.region = "alpha"
			life := region.Open(s.st.SessionConfig(), region.Record{Name: "alpha"}, 0)
			life, _ = region.Step(s.st.SessionConfig(), life, 0, region.Hello{Stream: c.shared.Number, ClusterID: "a", Incarnation: 1, Term: 1})
			s.st.Regions["alpha"] = &state.Region{
				Name: "alpha", Record: &nusav1.Region{}, Life: life, Session: &c.shared, Orders: link.NewOutbox[state.Order]("e", 10),
			}
			for full && s.Commit.TryBegin(func(*state.Tx) error { return nil }, func(error) {}) {
				continue
			}
			received := make(chan error, 1)
			answers := []*nusav1.SlotAnswer{{Job: "j", Group: "g", To: 1}}
			go func() {
				received <- c.receiveEach(t.Context(), &script{messages: []*nusav1.RegionMessage{
					{Kind: &nusav1.RegionMessage_Answers{Answers: &nusav1.SlotAnswers{Answers: answers}}},
					{Kind: &nusav1.RegionMessage_Answers{Answers: &nusav1.SlotAnswers{Answers: answers}}},
					{Kind: &nusav1.RegionMessage_Lease{Lease: &nusav1.LeaseRequest{Id: 1}}},
				}})
			}()
			synctest.Wait()
			if c.outbox.len() != 1 || c.outbox.take().GetLease().GetId() != 1 || c.unhandled.Load() == 0 {
				t.Errorf("%s: the lease waits for the answer, or the answer for nothing", name)
			}
			run()
			if err := <-received; err != io.EOF {
				t.Errorf("%s: %v", name, err)
			}
			time.Sleep(time.Second) // answers wait a moment for a submit
			if n := c.unhandled.Load(); n != 0 {
				t.Errorf("%s: %d messages are not handled", name, n)
			}
		})
	}
}

// TestLeasesGoBeforeSets: a session sends the grants of leases before its sets.
func TestLeasesGoBeforeSets(t *testing.T) {
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("region-%02d", i))
	}
	s := newServer(t, func() time.Duration { return time.Second }, names...)
	c := s.live["region-07"]
	c.opened.Store(true)
	c.known = &nusav1.KnownSets{}
	c.cursor = s.st.Regions["region-07"].Orders.Cursor(link.Position{})
	if wait := publish(s); wait != 0 || s.peers.version != 1 {
		t.Fatalf("version %d of the peers, the next after %s", s.peers.version, wait)
	}
	s.requestLease(c, &nusav1.LeaseRequest{Id: 1}, 0)
	if m := c.next(); m != nil || c.outbox.len() != 1 {
		t.Errorf("%v goes before a lease", m)
	}
	c.outbox.take()
	peers := 0
	for m := c.next(); m != nil; m = c.next() {
		peers += len(m.GetPeerChanges().GetBuckets())
	}
	if peers == 0 {
		t.Error("no peers are sent")
	}
}

// TestFewLargeMessagesAtATime: other sessions wait for their turn, but not for a session whose
// region does not read.
func TestFewLargeMessagesAtATime(t *testing.T) {
	var turns turns
	woken := func(c *session) bool { return len(c.woken) > 0 }
	var all []*session
	for range maxTurns + 2 {
		all = append(all, &session{woken: make(chan struct{}, 1)})
	}
	for i, c := range all {
		if got := turns.take(c, 0); got != (i < maxTurns) {
			t.Errorf("session %d has a turn: %t", i, got)
		}
	}
	turns.give(all[3], 0)
	if !woken(all[maxTurns]) || woken(all[maxTurns+1]) {
		t.Error("the one that waits longest is not woken, or both are")
	}
	turns.expire(maxTurn)
	if !woken(all[maxTurns+1]) || !turns.take(all[maxTurns+1], maxTurn) {
		t.Error("a session waits for one that does not read")
	}
}

// TestBusyServerEndsNothing: a session does not end because this server checks late, or because it
// has not yet handled messages that have arrived.
func TestBusyServerEndsNothing(t *testing.T) {
	now := time.Second
	s := newServer(t, func() time.Duration { return now }, "alpha", "beta")
	ended := map[string]bool{}
	for name, c := range s.live {
		c.shared.Refuse = func(string) { ended[name] = true }
	}
	s.EndSilent()
	now += 2 * time.Hour
	s.EndSilent()
	if len(ended) > 0 {
		t.Fatalf("ended by a late check: %v", ended)
	}
	s.live["alpha"].unhandled.Add(1)
	for range 2 * time.Hour / (2 * time.Second) {
		now += 2 * time.Second
		s.EndSilent()
	}
	if ended["alpha"] || !ended["beta"] {
		t.Errorf("ended: %v, want beta, which is silent", ended)
	}
}

// TestSessionEndsWhenTheGlobalLevelRises: the last global server of an earlier version was upgraded.
// Another session begins, whose welcome binds the region's log to the federation.
func TestSessionEndsWhenTheGlobalLevelRises(t *testing.T) {
	s := newServer(t, func() time.Duration { return time.Second }, "alpha", "beta")
	ended := map[string]error{}
	for name, c := range s.live {
		c.cancel = func(err error) { ended[name] = err }
	}
	s.EndSilent()
	if len(ended) > 0 {
		t.Fatalf("ended at the same level: %v", ended)
	}
	s.st.GlobalLevel = 1
	s.live["beta"].level = 1
	s.EndSilent()
	if !errors.Is(ended["alpha"], errLevel) || ended["beta"] != nil {
		t.Errorf("ended: %v, want alpha, whose welcome named a lower level", ended)
	}
	delete(ended, "alpha")
	s.live["alpha"].level, s.st.GlobalLevel = 1, 3
	s.EndSilent()
	if len(ended) > 0 {
		t.Errorf("ended at a level that changes nothing for a session: %v", ended)
	}
}

// stalled is a stream whose hello arrives, and nothing after it.
type stalled struct {
	script
	ctx context.Context
}

func (s *stalled) Context() context.Context { return s.ctx }

func (s *stalled) Recv() (*nusav1.RegionMessage, error) {
	if len(s.messages) > 0 {
		return s.script.Recv()
	}
	<-s.ctx.Done()
	return nil, s.ctx.Err()
}

// TestSlowRegistrationEndsNothing: a hello that arrived in time counts, however long the store
// takes to register it.
func TestSlowRegistrationEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, run := committing(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		hello := &nusav1.RegionHello{Definition: &nusav1.RegionDefinition{Name: "alpha"}, ClusterId: "a", Incarnation: 1, Term: 1, Protocol: protocol}
		go func() {
			ended <- s.Serve(&stalled{ctx: ctx, script: script{messages: []*nusav1.RegionMessage{{Kind: &nusav1.RegionMessage_Hello{Hello: hello}}}}})
		}()
		time.Sleep(2 * helloWait)
		synctest.Wait()
		select {
		case err := <-ended:
			t.Errorf("the session has ended: %v", err)
			ended <- err
		default:
		}
		cancel()
		<-ended
		run()
	})
}

// TestTurnThatNobodyNeedsIsPassedOn: a session was woken for its turn, but has all its peers
// meanwhile. The next session then sends.
func TestTurnThatNobodyNeedsIsPassedOn(t *testing.T) {
	s := newServer(t, func() time.Duration { return 0 }, "alpha", "beta")
	s.peers = s.peers.next(s.st, 0, true)
	s.peers.pack()
	alpha, beta := s.live["alpha"], s.live["beta"]
	for _, c := range s.live {
		c.known = &nusav1.KnownSets{} // the session needs all peers
	}
	s.st.Lock()
	defer s.st.Unlock()
	var sending []*session
	for range maxTurns {
		c := &session{woken: make(chan struct{}, 1)}
		sending = append(sending, c)
		s.turns.take(c, 0)
	}
	for _, c := range []*session{alpha, beta} {
		if m := c.peersMessage(); m != nil {
			t.Fatalf("%s sends although others have all turns: %v", c.region, m)
		}
	}
	for _, other := range s.peers.buckets { // as if a region that alpha lacked had been removed
		alpha.known.Peers = append(alpha.known.Peers, other)
	}
	alpha.known.Peers[sets.Bucket("alpha")] ^= s.peers.entries["alpha"].hash
	s.turns.give(sending[0], 0)
	if len(alpha.woken) != 1 || len(beta.woken) != 0 {
		t.Fatalf("woken: alpha %d, beta %d times, want alpha", len(alpha.woken), len(beta.woken))
	}
	if m := alpha.peersMessage(); m != nil {
		t.Fatalf("alpha, which has all peers, gets %v", m)
	}
	if len(beta.woken) != 1 {
		t.Error("beta is not woken")
	}
	if m := beta.peersMessage(); !isLarge(m) {
		t.Errorf("beta gets %v, want all peers", m)
	}
}

// TestWhatNobodyWaitsForWaitsForCompany: after a quiet time the sender wakes at once. In a busy time
// it wakes after companyWait, or with the next change that the region waits for.
func TestWhatNobodyWaitsForWaitsForCompany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return quietAfter + time.Since(began) })
		c := New(Config{State: st}).newSession(func(error) {})
		for i, want := range []time.Duration{0, companyWait, companyWait, companyWait} {
			before := time.Now()
			st.Lock()
			c.wakeLater()
			st.Unlock()
			<-c.woken
			if took := time.Since(before); took != want {
				t.Errorf("call %d woke the sender after %s, want %s", i, took, want)
			}
			c.next()
		}
		c.wakeLater()
		c.wake()
		<-c.woken
		c.next()
		time.Sleep(2 * companyWait)
		if len(c.woken) != 0 {
			t.Error("the sender is woken although it has sent everything")
		}
	})
}
