package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// Listen opens a stream listener. An error names the flag that chooses another
// address.
func Listen(ctx context.Context, n network.Net, addr, flag string) (net.Listener, error) {
	l, err := n.Listen(ctx, addr)
	if err != nil {
		return nil, ListenError(addr, flag, err)
	}
	return l, nil
}

// ListenPacket is like Listen, for datagrams.
func ListenPacket(ctx context.Context, n network.Net, addr, flag string) (net.PacketConn, error) {
	c, err := n.ListenPacket(ctx, addr)
	if err != nil {
		return nil, ListenError(addr, flag, err)
	}
	return c, nil
}

// ListenError converts the error of a listener that was opened without Listen. The result
// names the flag that chooses another address.
func ListenError(addr, flag string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return listenError{err, fmt.Sprintf("listen %s: address already in use: another nusa? choose another with %s", addr, flag)}
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return listenError{err, fmt.Sprintf("listen %s: not an address of this machine: choose another with %s", addr, flag)}
	case errors.Is(err, syscall.EACCES):
		return listenError{err, fmt.Sprintf("listen %s: permission denied: choose a port above 1023 with %s", addr, flag)}
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return listenError{err, fmt.Sprintf("listen %s: %v (%s)", addr, op.Err, flag)}
	}
	return fmt.Errorf("listen %s: %w (%s)", addr, err, flag)
}

// listenError is an error with a text for the operator.
type listenError struct {
	error
	text string
}

func (h listenError) Error() string { return h.text }
func (h listenError) Unwrap() error { return h.error }

// Loopback reports whether only this machine can reach an address of the form host:port. A host
// name other than localhost counts as another machine.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.IsLoopback()
	}
	return host == "localhost"
}
