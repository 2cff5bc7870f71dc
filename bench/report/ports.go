package report

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// firstPort and lastPort bound the ports that FreePorts chooses from. The system uses
// higher ports for outgoing connections.
const firstPort, lastPort = 20_000, 32_000

// FreePorts finds n ports of 127.0.0.1 on which no process listens, neither by TCP nor by
// UDP.
func FreePorts(n int) ([]int, error) {
	var out []int
	for range 100 * n {
		port := firstPort + rand.IntN(lastPort-firstPort)
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		tcp, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		udp, err := net.ListenPacket("udp", addr)
		// The listeners stay open until all ports are found, so that no port is found twice.
		defer tcp.Close()
		if err != nil {
			continue
		}
		defer udp.Close()
		out = append(out, port)
		if len(out) == n {
			return out, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports of 127.0.0.1 in %d..%d", n, firstPort, lastPort)
}
