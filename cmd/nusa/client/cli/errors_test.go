package cli

import (
	"context"
	"net"
	"os"
	"syscall"
	"testing"
)

// TestDevIsSuggestedOnlyAtItsAddress: nusa dev is suggested only for its own address.
func TestDevIsSuggestedOnlyAtItsAddress(t *testing.T) {
	for addr, want := range map[string]string{
		DefaultAddr:        "start `nusa dev`, or name a server with --addr or NUSA_ADDR",
		"203.0.113.1:7610": "no Nusa server listens there: set --addr or NUSA_ADDR to the gRPC address of a server",
	} {
		if got := (&Settings{Addr: addr, Program: "nusa"}).unreachedAdvice(); got != want {
			t.Errorf("%s: %q, want %q", addr, got, want)
		}
	}
}

func TestDialProblemIsShort(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, "no gRPC answer there"},
		{refused, "connection refused"},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}}, "no such host"},
		{context.DeadlineExceeded, "no answer in time"},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)}, "no route to host"},
	} {
		if got := dialProblem(c.err); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}
