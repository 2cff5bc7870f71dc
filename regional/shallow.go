package regional

// Each agent's session has a goroutine that waits, most of the time, 4 KB deep in
// gRPC. Its stack of 8 KB has room for that and little else. A deeper call would
// double it, for good: Go halves a stack only when less than a quarter is in use.
// With ten thousand agents that is 80 MB. So what they say most often is read
// without such calls (reports.go), and others are made on stacks that come and go.

// aside runs f on another stack, which is given back when it ends: what may wait,
// and happens once in a session.
func aside(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return <-done
}
