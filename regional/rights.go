package regional

import (
	"log/slog"
	"sync/atomic"

	"github.com/nusa-scheduler/nusa/regional/api"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/uplink"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// rightsCopy is the region's copy of who may do what. Each server of the region has the copy in its
// log, so the region decides without the global tier.
type rightsCopy struct {
	view func() *state.View
	log  *slog.Logger
	// federated: the region has a global tier, which sends who may do what.
	federated bool
	latest    atomic.Pointer[readRights]
}

// readRights are documents and the set in them. The set is nil if it cannot be read. A document is nil
// if the region has stored nothing.
type readRights struct {
	document, local *state.Document
	set             *rights.Set
}

// get returns who may do what, or nil if this server cannot read that. Then no operator may do
// anything.
func (c *rightsCopy) get() *rights.Set {
	view := c.view()
	local, _ := view.Document(api.LocalTokens)
	if latest := c.latest.Load(); latest != nil && uplink.SameAuth(view, latest.document) && latest.local == local {
		return latest.set
	}
	next := &readRights{local: local}
	msg, document, err := uplink.StoredAuth(view)
	next.document = document
	if err == nil {
		of := rights.Region{Stored: msg, Awaits: c.federated && document == nil}
		of.Local, err = api.ReadLocalTokens(local)
		if err != nil {
			c.log.Error("cannot read the tokens of this region alone, so none of them holds", "error", err)
		}
		next.set, err = rights.OfRegion(of)
	}
	if err != nil {
		c.log.Error("cannot read the stored roles, bindings and tokens: no operator may do anything here until the global tier sends them again, or this server is upgraded", "error", err)
	}
	c.latest.Store(next)
	return next.set
}
