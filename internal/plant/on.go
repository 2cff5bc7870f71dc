//go:build planted

package plant

var now Bug

// Is reports whether a bug is planted.
func Is(b Bug) bool { return now == b }

// Set plants a bug; an empty name plants none. Call Set before any other goroutine runs.
func Set(b Bug) { now = b }
