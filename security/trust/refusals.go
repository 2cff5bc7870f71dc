package trust

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
	// counted are all refusals by the text of their reason.
	counted map[string]int
}

var refusedDesc = prometheus.NewDesc("nusa_refused_connections_total", "Connections whose peer was refused in the handshake.", []string{"reason"}, nil)

// Describe implements prometheus.Collector.
func (s *Source) Describe(out chan<- *prometheus.Desc) { out <- refusedDesc }

// Collect implements prometheus.Collector.
func (s *Source) Collect(out chan<- prometheus.Metric) {
	s.refusals.mu.Lock()
	defer s.refusals.mu.Unlock()
	for why, n := range s.refusals.counted {
		out <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(n), why)
	}
}

// Refuse counts and logs that a peer was refused, for servers that use TLS.
func (s *Source) Refuse(addr net.Addr, err error) { s.refuse(addr, err) }

// refuse counts and logs that a peer was refused.
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
	if s.refusals.counted == nil {
		s.refusals.counted = map[string]int{}
	}
	text := "other"
	if why != nil {
		text = why.Error()
	}
	s.refusals.counted[text]++
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
