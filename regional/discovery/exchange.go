package discovery

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/discovery"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// rosterEach is how often the distances and the silence of regions are looked at.
	rosterEach = 5 * time.Second
	// A distance is sent again if it has changed by movedBy, and by a part of itself of 1/movedPart.
	movedBy   = time.Millisecond
	movedPart = 10
	// roundTo is the precision of distances.
	roundTo = 100 * time.Microsecond
)

// Exchange is what a master does about the services of other regions during one term.
type Exchange struct {
	Region string
	Store  *discovery.Store
	// Global says that the region has a global tier.
	Global bool
	// View returns the topology as this region knows it.
	View func() *topology.View
	// Clock is the clock of the store.
	Clock func() time.Duration
	Log   *slog.Logger

	mu sync.Mutex
	// above is the latest list of regions of the global tier. received says that there is one.
	above    discovery.Roster
	received bool
	// connected: the global tier sends changes now. Otherwise it has not since lost.
	connected bool
	lost      time.Duration
}

// Begin is called at the start of a term. From now on the roster says how old the store is.
func (e *Exchange) Begin() {
	e.lost = e.Clock()
	if since, lost := e.Store.Lost(); lost {
		e.lost = since
	}
	if r := e.Store.Roster(); r.Silent {
		e.lost = min(e.lost, r.Since)
	}
	e.Store.Lead(true)
	e.update()
}

// Run keeps the list of regions up to date until ctx ends.
func (e *Exchange) Run(ctx context.Context) error {
	for range wait.Ticks(ctx, rosterEach) {
		e.update()
	}
	return nil
}

// Connect publishes the region's instances to a global server and follows it, until ctx ends.
func (e *Exchange) Connect(ctx context.Context, client nusav1.DiscoveryClient, session string) {
	source := &discovery.Source{
		Client: client, Store: e.Store, Own: e.Region, Except: e.Region,
		Roster: func(r discovery.Roster) {
			e.mu.Lock()
			e.above, e.received = r, true
			e.mu.Unlock()
			e.update()
		},
		Up: func() {
			e.set(true)
			e.Store.Confirm()
		},
		Down: func() { e.set(false) },
	}
	var both sync.WaitGroup
	both.Go(func() {
		discovery.Keep(ctx, func(ctx context.Context) error {
			return discovery.Publish(ctx, client, e.Store, e.Region, session)
		}, discovery.LogFailures(e.Log, "publish"))
	})
	both.Go(func() { discovery.Keep(ctx, source.Follow, discovery.LogFailures(e.Log, "follow")) })
	both.Wait()
}

func (e *Exchange) set(connected bool) {
	e.mu.Lock()
	if e.connected && !connected {
		e.lost = e.Clock()
	}
	e.connected = connected
	e.mu.Unlock()
	e.update()
}

// update makes the store's list of regions.
func (e *Exchange) update() {
	old := e.Store.Roster()
	view := e.View()
	e.mu.Lock()
	defer e.mu.Unlock()
	from := e.above.Regions
	if !e.received {
		from = old.Regions
	}
	next := discovery.Roster{Own: e.Region, Regions: []discovery.Region{{Name: e.Region}}}
	if e.Global && !e.connected {
		next.Silent, next.Since = true, e.lost
	}
	if e.connected && e.above.Silent {
		next.Silent, next.Since = true, e.above.Since
	}
	for _, r := range from {
		if r.Name == e.Region {
			continue
		}
		r.Distance = distance(view, e.Region, r.Name, distanceIn(&old, r.Name))
		next.Regions = append(next.Regions, r)
	}
	e.Store.SetRoster(next)
}

func distanceIn(r *discovery.Roster, name string) catalog.Distance {
	for i := range r.Regions {
		if r.Regions[i].Name == name {
			return r.Regions[i].Distance
		}
	}
	return catalog.Distance{}
}

// distance returns the distance of a region, or the one that was sent unless it has changed noticeably.
func distance(view *topology.View, from, to string, sent catalog.Distance) catalog.Distance {
	d := distanceOf(view, from, to)
	change := (d.RTT - sent.RTT).Abs()
	if d.Source == sent.Source && (change < movedBy || change < sent.RTT/movedPart) {
		return sent
	}
	d.RTT = d.RTT.Round(roundTo)
	return d
}
