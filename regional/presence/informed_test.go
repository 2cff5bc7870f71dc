package presence

import "testing"

// TestInformedByAConfirmedGrant: the supervisors know an order when the agent confirms a grant
// that it requested after it has stored the order.
func TestInformedByAConfirmedGrant(t *testing.T) {
	var h Informed
	for id, c := range []struct{ stored, confirmed, want uint64 }{
		1: {0, 0, 0},
		2: {7, 1, 0}, // grant 1 was requested before the order was stored
		3: {0, 1, 0}, // grant 2 was lost
		4: {9, 1, 0},
		5: {0, 3, 7}, // an earlier request than 3 was waiting
		6: {0, 4, 7},
		7: {8, 6, 9},
		8: {0, 7, 9},
	} {
		if id == 0 {
			continue
		}
		if c.stored > 0 {
			h.Stored(c.stored)
		}
		if got := h.Requested(uint64(id), c.confirmed); got != c.want {
			t.Errorf("request %d: %d, want %d", id, got, c.want)
		}
	}
}
