package nodes

// Each agent's session has a goroutine that mostly waits in gRPC, 4 KB deep. Its
// stack of 8 KB has room for that and little else. A deeper call would double the
// stack permanently: Go halves a stack only when less than a quarter of it is in
// use. With ten thousand agents that is 80 MB. So the frequent messages are
// decoded without deep calls (package wire), and other calls run on goroutines
// that end.

// onNewStack runs f on another goroutine and waits for it. Use it for calls that are
// made about once in a session.
func onNewStack(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return <-done
}
