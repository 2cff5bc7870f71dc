//go:build !planted

package plant

// Is reports whether a bug is planted. In this build no bug is.
func Is(Bug) bool { return false }

// Set panics, because this build cannot plant a bug.
func Set(Bug) { panic("no bugs in this build: use the tag planted") }
