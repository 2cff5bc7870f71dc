package lease

import (
	"testing"
	"time"
)

const s = time.Second

func TestLeaseCountsFromItsRequest(t *testing.T) {
	var h Holder
	if st := h.At(5 * s); st.Held || h.Renewal(4*s) != 4*s {
		t.Fatalf("new: %+v, renewal %s", st, h.Renewal(4*s))
	}
	first := h.Request(10 * s)
	second := h.Request(13 * s)
	// The grant arrives late, but the lease counts from the request.
	if !h.Granted(second, 15*s) || h.At(20*s).Left != 8*s || h.Renewal(0) != 5*s {
		t.Fatalf("after the second grant: %+v, renewal %s", h.At(20*s), h.Renewal(0))
	}
	// An older grant never shortens the lease.
	if !h.Granted(first, 15*s) || h.At(20*s).Deadline != 28*s {
		t.Fatalf("after the first grant: %+v", h.At(20*s))
	}
	for _, id := range []uint64{0, 99} {
		if h.Granted(id, 100*s) {
			t.Errorf("an answer to request %d, which was never made, counts", id)
		}
	}
	if h.Granted(second, 0) || h.Granted(second, -s) {
		t.Error("a lease of no length counts")
	}
	h.Forget()
	if st := h.At(20 * s); st.Held || st.Left > 0 {
		t.Fatalf("after it was forgotten: %+v", st)
	}
	if !h.Granted(first, 15*s) || h.At(20*s).Left != 5*s {
		t.Fatalf("granted again: %+v", h.At(20*s))
	}
	for range maxPending {
		h.Request(30 * s)
	}
	if h.Granted(second, 100*s) {
		t.Error("a forgotten request counts")
	}
}

// TestLeaseIsOverByEveryClock uses clocks that are up to 1 % off. When the grantor's wait
// is over, the lease and the stop time have passed on the holder's clock.
func TestLeaseIsOverByEveryClock(t *testing.T) {
	rates := []float64{0.99, 0.995, 1, 1.005, 1.01}
	for _, length := range []time.Duration{time.Second, 10 * s, 15 * s, 30 * s, time.Hour} {
		for _, stop := range []time.Duration{0, time.Millisecond, 5 * s, 10 * time.Minute} {
			for _, holder := range rates {
				for _, grantor := range rates {
					waited := float64(Over(length, stop)) / grantor
					if used := float64(length+stop)/holder + float64(killTime)/1.01; waited < used {
						t.Fatalf("lease %s, stop %s, holder ×%g, grantor ×%g: over after %g s, ended after %g s", length, stop, holder, grantor, waited/1e9, used/1e9)
					}
					if sure, ends := float64(Sure(length))/holder, float64(length)/grantor; sure > ends {
						t.Fatalf("ttl %s, holder ×%g, grantor ×%g: relied on for %g s, ends after %g s", length, holder, grantor, sure/1e9, ends/1e9)
					}
				}
			}
		}
	}
	if got, want := Over(10*s, 5*s), 15*s*101/99+s+1; got != want {
		t.Errorf("lease 10s, stop 5s: over after %s, want %s", got, want)
	}
}
