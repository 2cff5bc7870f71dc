package api

import (
	"context"

	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/agent/engine"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Repairs is the service Repairs of one node. It says which orders the agent has stored, so that the
// master can compare them with the log.
type Repairs struct {
	nusav1.UnimplementedRepairsServer
	engine *engine.Engine
}

// NewRepairs returns the service over an engine.
func NewRepairs(e *engine.Engine) *Repairs { return &Repairs{engine: e} }

// Orders returns the orders that the agent has stored.
func (s *Repairs) Orders(ctx context.Context, _ *nusav1.HeldOrdersRequest) (*nusav1.HeldOrders, error) {
	orders, err := s.engine.Orders(ctx)
	if err != nil {
		return nil, status.FromContextError(err).Err()
	}
	return &nusav1.HeldOrders{Orders: orders}, nil
}
