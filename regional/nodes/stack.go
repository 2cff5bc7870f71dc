package nodes

// Each agent's session has a goroutine that mostly waits in gRPC, with 4 KB on its stack.
// The stack has 8 KB, so little room is left. A deeper call would double the stack for
// good, because Go halves a stack only when less than a quarter of it is in use. For ten
// thousand agents that would cost 80 MB. So the frequent messages are decoded without deep
// calls (package wire), and other calls run on goroutines that end.

// onNewStack runs f on another goroutine and waits for its end. It is meant for calls that
// happen about once in a session.
func onNewStack(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return <-done
}
