package regional

import (
	"log/slog"
	"sync/atomic"

	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/uplink"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// rightsCopy is the region's copy of who may do what. Each server of the region has the copy in its
// log, so the region decides without the global tier.
type rightsCopy struct {
	view   func() *state.View
	log    *slog.Logger
	latest atomic.Pointer[readRights]
}

// readRights is a document and the set in it. The set is nil if it cannot be read. The document is nil
// if the region has stored nothing.
type readRights struct {
	document *state.Document
	set      *rights.Set
}

// get returns who may do what, or nil if this server cannot read that. Then no operator may do
// anything.
func (c *rightsCopy) get() *rights.Set {
	view := c.view()
	if latest := c.latest.Load(); latest != nil && uplink.SameAuth(view, latest.document) {
		return latest.set
	}
	msg, document, err := uplink.StoredAuth(view)
	next := &readRights{document: document}
	if err == nil {
		next.set, err = rights.New(msg)
	}
	if err != nil {
		c.log.Error("cannot read the stored roles, bindings and tokens: no operator may do anything here until the global tier sends them again, or this server is upgraded", "error", err)
	}
	c.latest.Store(next)
	return next.set
}
