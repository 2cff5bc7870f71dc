package rest

import (
	"context"
	"net/http"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/discovery"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// targets lists the instances of services for Prometheus. The parameters namespace and name select some
// of them.
func targets(ctx context.Context, c grpc.ClientConnInterface, r *http.Request) (any, error) {
	q := r.URL.Query()
	list := func(ctx context.Context, req *nusav1.ListServicesRequest) (*nusav1.ListServicesResponse, error) {
		return nusav1.NewServicesClient(c).List(ctx, req)
	}
	return discovery.Targets(ctx, list, q.Get("namespace"), q.Get("name"))
}
