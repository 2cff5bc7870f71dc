package freeport

import (
	"net"
	"testing"
)

// TestReservedPortsAreUnique: a port is not reserved twice while a test has it, whether
// the test listens on the port or not. A block with a port in use is not reserved.
func TestReservedPortsAreUnique(t *testing.T) {
	given := map[int]bool{}
	for _, n := range []int{1, 99, 100, 101, 600} {
		base := Reserve(t, n)
		if base < first || base+n > last {
			t.Errorf("%d ports from %d", n, base)
		}
		for port := base; port < base+n; port++ {
			if given[port] {
				t.Errorf("port %d is reserved twice", port)
			}
			given[port] = true
		}
		if reserveBlocks(base, 1) != nil {
			t.Errorf("the block of %d is reserved twice", base)
		}
	}
	for network, listen := range map[string]func(addr string) (close func() error, err error){
		"tcp": func(addr string) (func() error, error) {
			lis, err := net.Listen("tcp", addr)
			return func() error { return lis.Close() }, err
		},
		"udp": func(addr string) (func() error, error) {
			conn, err := net.ListenPacket("udp", addr)
			return func() error { return conn.Close() }, err
		},
	} {
		port := Reserve(t, 1) + 7
		closed, err := listen(loopback(port))
		if err != nil {
			t.Fatal(err)
		}
		if free(port) {
			t.Errorf("a port in use for %s counts as free", network)
		}
		if err := closed(); err != nil {
			t.Error(err)
		}
		if !free(port) {
			t.Errorf("a port that was closed for %s does not count as free", network)
		}
	}
}
