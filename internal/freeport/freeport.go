// Package freeport gives tests ports for what has to know its address before it
// listens there: other servers' configuration, a task, a process. A port that
// was found free and let go again may be another test's by the time it is used;
// these belong to one test until it ends, whatever else runs on this machine.
package freeport

import (
	"fmt"
	"net"
	"os"
	"testing"
)

// Ports below those that agents give to tasks (20000) and that the system gives
// to outgoing connections and to whoever listens on port 0 (32768), and above
// those that Nusa has by default. They are given in blocks: the last port of
// one is held by the test that has it, and is never given.
const (
	first, last = 10000, 20000
	blockPorts  = 100
)

// Reserve returns the first of n ports, 1 … 9999, that follow each other, of which
// the last of each hundred is not to be used.
func Reserve(t testing.TB, n int) int {
	t.Helper()
	blocks := (n + blockPorts - 1) / blockPorts
	// Each process begins elsewhere: whoever does not know of the rule here, such
	// as a federation on this machine, is rarely met.
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

// reserveBlocks takes the blocks, or returns nil where somebody uses a port of them.
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

// free says whether nobody has the port, for streams and for datagrams.
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
