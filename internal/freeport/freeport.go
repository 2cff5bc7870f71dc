package freeport

import (
	"fmt"
	"net"
	"os"
	"testing"
)

// The range lies below the ports that agents give to tasks (20000) and that the
// system gives to outgoing connections and to listeners on port 0 (32768), and
// above Nusa's default ports. It is reserved in blocks. The test that reserved a
// block listens on its last port, which is never handed out.
const (
	first, last = 10000, 20000
	blockPorts  = 100
)

// Reserve returns the first of n consecutive ports, 1 ≤ n ≤ 9999. The caller must
// not use the last port of each hundred.
func Reserve(t testing.TB, n int) int {
	t.Helper()
	blocks := (n + blockPorts - 1) / blockPorts
	// Each process starts at another block, so that it rarely conflicts with processes
	// that use ports without this package, such as a federation on this machine.
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

// reserveBlocks returns the listeners that guard the blocks; nil when a port in
// them is in use.
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
