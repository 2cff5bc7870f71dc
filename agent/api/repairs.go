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
	engine   *engine.Engine
	comparer *engine.Comparer
}

// NewRepairs returns the service over an engine and its Comparer.
func NewRepairs(e *engine.Engine, c *engine.Comparer) *Repairs {
	return &Repairs{engine: e, comparer: c}
}

// Orders returns the orders that the agent has stored, and what the agent has repaired.
func (s *Repairs) Orders(ctx context.Context, req *nusav1.HeldOrdersRequest) (*nusav1.HeldOrders, error) {
	if req.GetCompare() {
		s.comparer.Compare(ctx)
	}
	orders, err := s.engine.Orders(ctx)
	if err != nil {
		return nil, status.FromContextError(err).Err()
	}
	return &nusav1.HeldOrders{Orders: orders, Repairs: s.comparer.Take()}, nil
}
