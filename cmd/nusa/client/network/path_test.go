package network

import "testing"

// TestNoPathAdviceCanBeFollowed: each suggested command is valid.
func TestNoPathAdviceCanBeFollowed(t *testing.T) {
	for relays, want := range map[int]string{
		0: "the direct way from a to b cannot be used now; --relays 2 may find one",
		1: "no path from a to b over at most 1 region in between is open now; --relays 2 may find one",
		5: "no path from a to b over at most 5 regions in between is open now; --relays 6 may find one",
		6: "no path from a to b over at most 6 regions in between is open now",
	} {
		if got := (pathOptions{relays: relays}).noPathText("a", "b"); got != want {
			t.Errorf("--relays %d: %s; want %s", relays, got, want)
		}
	}
}
