package sim_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/regional/gossip"
	"github.com/nusa-scheduler/nusa/regional/quorum"
	"github.com/nusa-scheduler/nusa/sim/simnet"
)

// counter is an FSM that counts the applied entries.
type counter struct{ applied atomic.Int64 }

func (c *counter) Apply(*raft.Log) any { return c.applied.Add(1) }

func (c *counter) Snapshot() (raft.FSMSnapshot, error) { return nil, fmt.Errorf("not needed here") }

func (c *counter) Restore(r io.ReadCloser) error { return r.Close() }

// voter is one server that gossips and votes.
type voter struct {
	ip    string
	group *quorum.Group
	fsm   *counter
	stop  func()
}

func startVoter(t *testing.T, n *simnet.Network, ip string, join []string) *voter {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	log := slog.New(slog.DiscardHandler)
	g, err := gossip.Listen(ctx, gossip.Config{Net: n.Net(ip), Listen: ip + ":7612", Advertise: ip, Region: "r", Join: join, Fast: true, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := n.Net(ip).Listen(ctx, ip+":7611")
	if err != nil {
		t.Fatal(err)
	}
	v := &voter{ip: ip, fsm: &counter{}}
	v.group, err = quorum.Open(quorum.Config{
		ID: ip, Net: n.Net(ip), Listener: ln, Advertise: ip + ":7611", Expect: 3, Others: true,
		Heartbeat: time.Second, Election: time.Second, LeaderLease: 500 * time.Millisecond, Commit: 50 * time.Millisecond,
		ReplaceAfter: 5 * time.Second, DeadAfter: time.Hour,
		Gossip: g, FSM: v.fsm, Cluster: func() string { return "" }, Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.SetLocal(gossip.Meta{ID: ip, Name: ip, Raft: ip + ":7611", Expect: 3}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	go func() { ended <- g.Run(ctx) }()
	go func() { ended <- v.group.Run(ctx) }()
	v.stop = func() {
		cancel()
		for range 2 {
			<-ended
		}
		if err := v.group.Close(); err != nil {
			t.Error(err)
		}
	}
	return v
}

// leaderOf waits until exactly one of the voters leads and the others follow it.
func leaderOf(t *testing.T, voters []*voter) *voter {
	t.Helper()
	for range 600 {
		time.Sleep(100 * time.Millisecond)
		for _, v := range voters {
			if v.group.State() != raft.Leader || v.group.VerifyLeader().Error() != nil {
				continue
			}
			agree := 0
			for _, other := range voters {
				if _, id := other.group.LeaderWithID(); string(id) == v.ip {
					agree++
				}
			}
			if agree == len(voters) {
				return v
			}
		}
	}
	t.Fatal("no leader within a minute")
	return nil
}

// TestRaftAndGossipInABubble: the libraries run over simnet in virtual time.
func TestRaftAndGossipInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Options{Loss: 0.01, Seed: 1})
		var voters []*voter
		for i := range 3 {
			voters = append(voters, startVoter(t, n, fmt.Sprintf("10.0.0.%d", i+1), []string{"10.0.0.1:7612"}))
		}
		first := leaderOf(t, voters)
		for range 10 {
			if err := first.group.Apply([]byte("x"), time.Second).Error(); err != nil {
				t.Fatal(err)
			}
		}
		// A leader that is cut off must step down; the others elect a new one.
		var rest []*voter
		for _, v := range voters {
			if v != first {
				n.Cut(first.ip, v.ip)
				rest = append(rest, v)
			}
		}
		second := leaderOf(t, rest)
		if first.group.State() == raft.Leader {
			t.Error("the leader that is cut off still leads")
		}
		if err := second.group.Apply([]byte("y"), time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		for _, v := range rest {
			n.Heal(first.ip, v.ip)
		}
		third := leaderOf(t, voters)
		// A killed leader is replaced, too.
		n.Kill(third.ip)
		third.stop()
		rest = nil
		for _, v := range voters {
			if v != third {
				rest = append(rest, v)
			}
		}
		fourth := leaderOf(t, rest)
		if err := fourth.group.Apply([]byte("z"), time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute) // the goroutines must not stall
		for _, v := range rest {
			if got := v.fsm.applied.Load(); got != 12 {
				t.Errorf("%s applied %d of 12", v.ip, got)
			}
			v.stop()
		}
		// A memberlist probe in flight ends with its own time-out, and time stands still once this function
		// returns.
		time.Sleep(time.Minute)
	})
}
