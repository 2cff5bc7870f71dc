package probe

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/topology"
)

// Config of a Prober. The zero value of a field is its default.
type Config struct {
	// Region that probes: the From of every edge.
	Region string
	// Net carries the probes.
	Net network.Net
	// Bind is where the probing socket is opened; default "127.0.0.1:0".
	Bind string
	// Key authenticates probes and answers (HMAC-SHA256); nil is none. Both
	// ends need the same.
	Key []byte
	// Limits of the plan.
	Limits Limits
	// Timeout after which a probe counts as lost; default 2 s.
	Timeout time.Duration
	// Seed of the jitter.
	Seed uint64
	// Resolve turns "host:port" into an address that Net's packet conns
	// accept; default net.ResolveUDPAddr.
	Resolve func(ctx context.Context, addr string) (net.Addr, error)
	// Changed is called with an edge whose state changed or whose median moved
	// noticeably. It is called from one goroutine and must not block.
	Changed func(topology.Edge)
	// Logger; default discards.
	Logger *slog.Logger
}
