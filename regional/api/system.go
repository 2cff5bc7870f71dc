package api

import (
	"context"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// system is the System service. It tells a client which server the client talks to. A
// server does not forward its calls.
type system struct {
	nusav1.UnimplementedSystemServer
	s *Server
}

func (y system) Info(context.Context, *nusav1.InfoRequest) (*nusav1.InfoResponse, error) {
	_, address := y.s.KnownMaster()
	out := &nusav1.InfoResponse{
		Role: "regional", Name: y.s.Name, Region: y.s.region(), Version: y.s.Version,
		LeaderAddress: address, FederationId: y.s.State.View().Cluster().FederationID,
	}
	if m := y.s.Master(); m != nil {
		out.Leader, out.Alarms = true, alarms(y.s, m)
	}
	return out, nil
}
