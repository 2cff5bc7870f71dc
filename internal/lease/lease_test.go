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
	for range maxPending {
		h.Request(30 * s)
	}
	if h.Granted(second, 100*s) {
		t.Error("a forgotten request counts")
	}
}
