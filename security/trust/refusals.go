package trust

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// Bounds of the lines of the log about refused peers: refusalsMost for each reason within
// refusalsWithin. So a flood of one reason does not hide the others.
const (
	refusalsMost   = 5
	refusalsWithin = time.Second
)

// refusalReasons are the reasons that are counted apart. All other reasons are counted together.
var refusalReasons = []error{
	identity.ErrNotExpected, ErrFederation, pki.ErrExpired, pki.ErrNotYetValid, pki.ErrUnknownCA, pki.ErrName,
	pki.ErrNotLeaf, pki.ErrUsage, pki.ErrOutsideRegion, pki.ErrKey,
}

// refusals bounds the lines of the log about refused peers.
type refusals struct {
	mu sync.Mutex
	// next is the end of the present interval, and logged counts its lines by reason.
	next   time.Time
	logged map[error]int
	// quiet counts the refusals without a line since the last line.
	quiet int
}

// refuse logs that a peer was refused.
func (s *Source) refuse(addr net.Addr, err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return // the peer went away, for example a check of an open port
	}
	var why error
	for _, one := range refusalReasons {
		if errors.Is(err, one) {
			why = one
			break
		}
	}
	s.refusals.mu.Lock()
	defer s.refusals.mu.Unlock()
	now := s.opts.Now()
	// A longer rest than refusalsWithin means that the clock was set back.
	rest := s.refusals.next.Sub(now)
	if rest <= 0 || rest > refusalsWithin {
		s.refusals.next, s.refusals.logged = now.Add(refusalsWithin), map[error]int{}
	}
	if s.refusals.logged[why] >= refusalsMost {
		s.refusals.quiet++
		return
	}
	s.refusals.logged[why]++
	s.opts.Logger.Warn("a connection is refused", "peer", addr.String(), "error", err, "others", s.refusals.quiet)
	s.refusals.quiet = 0
}
