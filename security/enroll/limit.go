package enroll

import (
	"net/netip"
	"sync"
	"time"
)

// Bounds of failed joins and renewals.
const (
	// failuresBurst is how many failures of one address are answered at once, and
	// failurePause the time in which one more is answered.
	failuresBurst = 10
	failurePause  = 200 * time.Millisecond
	// maxAddresses bounds the addresses that are remembered.
	maxAddresses = 4096
)

// failures bounds the failed joins of each address.
type failures struct {
	mu sync.Mutex
	// free is when an address has no failure left that counts.
	free map[netip.Addr]time.Time
}

// allow reports whether a request of an address is answered now.
func (f *failures) allow(a netip.Addr, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	wait := f.free[a].Sub(now)
	const most = failuresBurst * failurePause
	return wait < most || wait > 2*most // a longer wait means that the clock was set back
}

// add counts a failure of an address.
func (f *failures) add(a netip.Addr, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.free == nil {
		f.free = map[netip.Addr]time.Time{}
	}
	if len(f.free) >= maxAddresses {
		for other, free := range f.free {
			if !free.After(now) {
				delete(f.free, other)
			}
		}
	}
	if _, known := f.free[a]; !known && len(f.free) >= maxAddresses {
		a = netip.Addr{} // the addresses that are too many share one bound
	}
	free := f.free[a]
	if free.Before(now) {
		free = now
	}
	f.free[a] = free.Add(failurePause)
}
