package uplink

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nusa-scheduler/nusa/internal/sets"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// subscribe replaces the asks whose fit counts are reported.
func (u *Uplink) subscribe(asks []*nusav1.ShapeSubscription) {
	if len(asks) > maxSubscriptions {
		u.cfg.Logger.Warn("too many shape subscriptions, the last ones are not reported", "asks", len(asks), "max", maxSubscriptions)
		asks = asks[:maxSubscriptions]
	}
	subs := make([]Subscription, 0, len(asks))
	for _, a := range asks {
		subs = append(subs, Subscription{a.GetAsk(), wire.ShapeAskFromProto(a)})
	}
	u.mu.Lock()
	u.subscriptions, u.asks, u.asksReceived = subs, asks, true
	u.mu.Unlock()
}

func (u *Uplink) subscribed() []Subscription {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.subscriptions
}

// knownSets returns hashes and positions of the sets that the region already has from the
// global tier.
func (u *Uplink) knownSets() *nusav1.KnownSets {
	out := u.cfg.Federation.Known()
	view := u.cfg.FSM.View()
	addKnownAuth(out, view)
	out.Orders = knownOrders(u, view)
	u.mu.Lock()
	defer u.mu.Unlock()
	out.Column = u.column
	if u.asksReceived {
		out.Asks = sets.HashAsks(u.asks)
	}
	return out
}

// changeAsks applies changes of the asks. It returns the added asks.
func (u *Uplink) changeAsks(c *nusav1.AskChanges) []Subscription {
	next := map[uint64]*nusav1.ShapeSubscription{}
	u.mu.Lock()
	if !c.GetFull() {
		for _, a := range u.asks {
			next[a.GetAsk()] = a
		}
	}
	u.mu.Unlock()
	for _, hash := range c.GetRemoved() {
		delete(next, hash)
	}
	var added []Subscription
	for _, a := range c.GetAdded() {
		next[a.GetAsk()] = a
		added = append(added, Subscription{a.GetAsk(), wire.ShapeAskFromProto(a)})
	}
	u.subscribe(slices.SortedFunc(maps.Values(next), func(a, b *nusav1.ShapeSubscription) int { return cmp.Compare(a.GetAsk(), b.GetAsk()) }))
	return added
}
