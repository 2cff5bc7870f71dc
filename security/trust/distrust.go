package trust

import (
	"math/rand/v2"
	"time"

	"github.com/nusa-scheduler/nusa/security/pki"
)

// closeWithin is the time within which the connections of a root end that is trusted no more. They end
// at different times, because their peers connect again at once, with later certificates.
const closeWithin = 10 * time.Second

// distrust ends the connections whose peers have proved their identity with a certificate of a root
// that was trusted before, and is no more.
func distrust(s *Source, was, now *pki.Roots) {
	gone := map[string]bool{}
	for _, root := range was.Certs {
		gone[string(root.SubjectKeyId)] = true
	}
	for _, root := range now.Certs {
		delete(gone, string(root.SubjectKeyId))
	}
	delete(gone, "") // another authority has issued roots without this number
	if len(gone) == 0 {
		return
	}
	s.open.mu.Lock()
	defer s.open.mu.Unlock()
	n := 0
	for c := range s.open.conns {
		if gone[c.issuer] {
			n++
			time.AfterFunc(rand.N(closeWithin), func() { _ = c.raw.Close() }) // a second close does nothing
		}
	}
	if n > 0 {
		s.opts.Logger.Info("connections end because the root of their certificates is trusted no more", "connections", n, "within", closeWithin)
	}
}
