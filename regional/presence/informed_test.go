package presence

import "testing"

// TestInformedAtTheSecondRequest: the supervisors know an order when the agent requests the
// second lease after it has stored the order.
func TestInformedAtTheSecondRequest(t *testing.T) {
	var h Informed
	for i, c := range []struct{ stored, want uint64 }{{0, 0}, {7, 0}, {0, 7}, {0, 7}, {9, 7}, {8, 9}, {0, 9}} {
		if c.stored > 0 {
			h.Stored(c.stored)
		}
		if got := h.Requested(); got != c.want {
			t.Errorf("request %d: %d, want %d", i, got, c.want)
		}
	}
}
