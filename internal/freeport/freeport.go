package freeport

import (
	"fmt"
	"net"
	"os"
	"testing"
)

// Ports from first to last−1 are reserved. They are above Nusa's default ports, below the
// ports that agents give to tasks (from 20000), and below those that the system gives to
// outgoing connections and to listeners on port 0 (from 32768). Ports are reserved in
// blocks of blockPorts. A test that has reserved a block listens on the last port of the
// block, which no test uses otherwise.
const (
	first, last = 10000, 20000
	blockPorts  = 100
)

// Reserve returns the first of n consecutive ports, 1 ≤ n ≤ 9999. The caller must not use
// ports that end in 99.
func Reserve(t testing.TB, n int) int {
	t.Helper()
	blocks := (n + blockPorts - 1) / blockPorts
	// Each process tries another block first, so that it rarely conflicts with processes
	// that use ports without this package, for example a federation on this machine.
	for at := range (last - first) / blockPorts {
		base := first + (at+os.Getpid())%((last-first)/blockPorts)*blockPorts
		if base+blocks*blockPorts > last {
			continue
		}
		if guards := reserveBlocks(base, blocks); guards != nil {
			t.Cleanup(func() { release(guards) })
			return base
		}
	}
	t.Fatalf("no %d free ports between %d and %d", n, first, last)
	return 0
}

// reserveBlocks returns the listeners that guard the blocks; nil if a port of the blocks
// is in use.
func reserveBlocks(base, blocks int) []net.Listener {
	var guards []net.Listener
	for b := range blocks {
		guard := base + (b+1)*blockPorts - 1
		lis, err := net.Listen("tcp", loopback(guard))
		if err != nil {
			release(guards)
			return nil
		}
		guards = append(guards, lis)
		for port := guard - blockPorts + 1; port < guard; port++ {
			if !free(port) {
				release(guards)
				return nil
			}
		}
	}
	return guards
}

func release(guards []net.Listener) {
	for _, lis := range guards {
		lis.Close()
	}
}

// free reports whether the port is unused for both TCP and UDP.
func free(port int) bool {
	lis, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return false
	}
	defer lis.Close()
	conn, err := net.ListenPacket("udp", loopback(port))
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
