package cli

import "testing"

// TestUnreached: nusa dev is to be started only where it would listen.
func TestUnreached(t *testing.T) {
	for addr, want := range map[string]string{
		DefaultAddr:        "is `nusa dev` running? set --addr or NUSA_ADDR",
		"203.0.113.1:7610": "does a server listen there, for gRPC? set --addr or NUSA_ADDR to one that does",
	} {
		if got := (&Settings{Addr: addr, Program: "nusa"}).unreachedAdvice(); got != want {
			t.Errorf("%s: %q, want %q", addr, got, want)
		}
	}
}
