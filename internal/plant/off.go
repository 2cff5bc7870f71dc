//go:build !planted

package plant

// Is reports whether a bug is planted: never in this build.
func Is(Bug) bool { return false }

// Set plants a bug. It panics, because this build has none.
func Set(Bug) { panic("no bugs in this build: use the tag planted") }
