package global

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/bench/emulate"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/network"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// slowStore takes a while for each transaction.
type slowStore struct {
	store.Store
	takes time.Duration
}

func (s *slowStore) Txn(ctx context.Context, compares []store.Compare, ops []store.Op) (int64, error) {
	if !sleep(ctx, s.takes) {
		return 0, ctx.Err()
	}
	return s.Store.Txn(ctx, compares, ops)
}

// emulation is a server with emulated regions, in virtual time.
type emulation struct {
	*testServer
	fleet *emulate.Fleet
	// again starts the server once more.
	again func() *testServer
}

// emulated connects emulated regions to a server, and calls during. over returns the network of the regions.
func emulated(t *testing.T, c emulate.Config, over func(network.Net) network.Net, during func(*testing.T, emulation), change ...func(*Config)) {
	synctest.Test(t, func(t *testing.T) {
		f, began := newFederation(), time.Now()
		change = append(change, func(c *Config) {
			c.ReportInterval, c.CheckpointInterval = 5*time.Second, 30*time.Second
			c.Clock = func() time.Duration { return time.Since(began) + time.Hour }
		})
		e := emulation{again: func() *testServer { return f.start(t, "g1", change...) }}
		e.testServer = e.again()
		c.Addr, c.Net = e.addr, over(f.pipes.net())
		e.fleet = emulate.New(c)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := e.fleet.Run(ctx); err != nil {
				t.Errorf("the emulated regions ended: %v", err)
			}
		})
		defer running.Wait()
		defer cancel()
		if err := e.fleet.AwaitConnected(ctx, nil); err != nil {
			t.Fatal(err)
		}
		during(t, e)
	})
}

// TestStreamsEndNoSession: eight streams submit more than a slow store can take. The sessions of the regions, whose
// answers need the same store, go on, and each slot is accepted.
func TestStreamsEndNoSession(t *testing.T) {
	const regions, streams, jobs = 50, 8, 250
	var accepted sync.Map
	config := emulate.Config{
		Regions: regions, Nodes: 100, Ask: func(string) (int64, int64) { return 100, 64 << 20 },
		Accepted: func(s *nusav1.Slot, _ time.Time) { accepted.Store(s.GetJob(), true) },
	}
	unchanged := func(n network.Net) network.Net { return n }
	emulated(t, config, unchanged, func(t *testing.T, e emulation) {
		var all sync.WaitGroup
		for i := range streams {
			all.Go(func() {
				for _, resp := range e.submitKeyed(keyed(i*jobs, (i+1)*jobs)...) {
					if resp.GetCode() != 0 {
						t.Errorf("a submit was refused: %s", resp.GetError())
					}
				}
			})
		}
		all.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, req := range keyed(0, streams*jobs) {
			if _, is := accepted.Load(req.GetSpec().GetName()); !is {
				t.Errorf("%s is not accepted", req.GetSpec().GetName())
			}
		}
		if e.fleet.Ended() > 0 || e.fleet.Connected() != regions {
			t.Errorf("%d sessions ended, %d of %d regions hold a lease", e.fleet.Ended(), e.fleet.Connected(), regions)
		}
	}, func(c *Config) { c.Store = &slowStore{c.Store, 50 * time.Millisecond} })
}

// narrow is a network over which only so many bytes a second reach all regions together.
type narrow struct {
	bytes int

	mu   sync.Mutex
	free time.Time // when the bytes that were read so far have passed
}

// narrowConn is a region's connection over a narrow network.
type narrowConn struct {
	net.Conn
	n *narrow
}

func (c *narrowConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.n.mu.Lock()
	now := time.Now()
	if c.n.free.Before(now) {
		c.n.free = now
	}
	c.n.free = c.n.free.Add(time.Duration(n) * time.Second / time.Duration(c.n.bytes))
	wait := c.n.free.Sub(now)
	c.n.mu.Unlock()
	time.Sleep(wait)
	return n, err
}

func (n *narrow) over(all network.Net) network.Net {
	dial := all.Dial
	all.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		return &narrowConn{conn, n}, nil
	}
	return all
}

// TestStormDropsNoLease: many regions connect at once, over a network that needs seconds for what they all get.
// The server stops, and all reconnect to the next one. A session ends only with its server.
func TestStormDropsNoLease(t *testing.T) {
	const regions = 250
	slow := &narrow{bytes: 600_000}
	emulated(t, emulate.Config{Regions: regions, Nodes: 1}, slow.over, func(t *testing.T, e emulation) {
		for term := range 2 {
			for range 35 {
				time.Sleep(time.Second)
				synctest.Wait()
				if n, ended := e.fleet.Connected(), e.fleet.Ended(); n != regions || ended != term*regions {
					t.Fatalf("term %d: %d of %d regions hold a lease, %d sessions have ended", term+1, n, regions, ended)
				}
			}
			if term == 1 {
				return
			}
			e.stop()
			began := time.Now()
			e.again()
			if err := e.fleet.AwaitConnected(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			t.Logf("all regions hold a lease %s after the start", time.Since(began))
		}
	})
}
