package cli

import (
	"context"
	"net"
	"os"
	"strings"
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

func TestAddressWithoutPortGetsTheDefaultPort(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1": "127.0.0.1:7600", "127.0.0.1:7610": "127.0.0.1:7610", "g1.example": "g1.example:7600", "g1.example:1": "g1.example:1",
		"::1": "[::1]:7600", "[::1]": "[::1]:7600", "[::1]:7610": "[::1]:7610", "localhost": "localhost:7600",
	} {
		if got := withDefaultPort(addr); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
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

func TestColonWithoutPortIsRefused(t *testing.T) {
	const want = "no port follows the colon of localhost:: give a port, or leave the colon out for port 7600"
	for _, addr := range []string{"localhost:", "127.0.0.1:7600,localhost:"} {
		if _, err := parseServers(addr); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", addr, err, want)
		}
	}
}

func TestAddressesAreChecked(t *testing.T) {
	for addr, want := range map[string]string{
		"foo:bar:1": `"foo:bar:1" is not HOST[:PORT]`, "h:99999": `"h:99999": "99999" is not a port of 1..65535`, "h:1,h:0": `"0" is not a port`,
		"h:-1": `"-1" is not a port`, "h:grpc": `"grpc" is not a port`, "[h:1": "is not HOST[:PORT]", "h:1,,h:2": "an address is empty",
		"h": "", "h:65535": "", "::1,[::1]:1, 127.0.0.1": "",
	} {
		if _, err := parseServers(addr); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", addr, err, want)
		}
	}
}
