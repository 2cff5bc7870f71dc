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
		if got := h.Requested(uint64(id), c.confirmed, 0); got != c.want {
			t.Errorf("request %d: %d, want %d", id, got, c.want)
		}
	}
}

// TestEmptyGrantsInformNobody: an agent confirms a grant without a lease, too, but its
// supervisors learn no deadline from the grant.
func TestEmptyGrantsInformNobody(t *testing.T) {
	var h Informed
	h.Stored(7)
	for id, c := range []struct{ confirmed, empty, want uint64 }{
		1: {0, 0, 0},
		2: {1, 1, 0},
		3: {2, 2, 0},
		4: {3, 4, 0}, // grant 3 may have been repeated as an empty one
		5: {4, 4, 0},
		6: {5, 4, 7},
		7: {6, 7, 7}, // what the supervisors know they do not forget
	} {
		if id == 0 {
			continue
		}
		if got := h.Requested(uint64(id), c.confirmed, c.empty); got != c.want {
			t.Errorf("request %d: %d, want %d", id, got, c.want)
		}
	}
}
