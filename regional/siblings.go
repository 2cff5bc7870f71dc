package regional

import (
	"context"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// siblings serves the other servers of the region.
type siblings struct {
	nusav1.UnimplementedSiblingsServer
	s *server
}

// Kept returns this server's copy of what the global tier sent.
func (b siblings) Kept(_ context.Context, req *nusav1.FederationCacheRequest) (*nusav1.FederationCache, error) {
	return b.s.federation.Copy(req.GetToken()), nil
}
