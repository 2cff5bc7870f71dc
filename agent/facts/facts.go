// Package facts looks at the host: what the machine is (once) and how it is
// doing (each few seconds).
package facts

import (
	"context"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Source answers about a host. The answers are shared: do not change them. Both
// functions are safe for concurrent use, and cheap to call by many agents of
// one process.
type Source struct {
	// Static facts; they rarely change.
	Static func(ctx context.Context) (*nusav1.HostFacts, error)
	// Stats now. NodeStats.tasks is left to the agent.
	Stats func(ctx context.Context) (*nusav1.NodeStats, error)
}
