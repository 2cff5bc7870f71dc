package api

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/origins"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

var errOriginsGlobal = status.Error(codes.FailedPrecondition, "origin records are set and removed by the global tier: ask a global server")

// originRecords is the Origins service. It reads the origin records that the global tier
// last sent.
type originRecords struct {
	nusav1.UnimplementedOriginsServer
	s *Server
}

func (originRecords) Set(context.Context, *nusav1.SetOriginsRequest) (*nusav1.OriginRecord, error) {
	return nil, errOriginsGlobal
}

func (originRecords) Remove(context.Context, *nusav1.RemoveOriginsRequest) (*nusav1.RemoveOriginsResponse, error) {
	return nil, errOriginsGlobal
}

// table returns the records and their age. The age is 0 while a session with the global
// tier exists.
func (o originRecords) table() (*origins.Table, *durationpb.Duration, error) {
	m, err := o.s.master()
	if err != nil {
		return nil, nil, err
	}
	table, age, received := o.s.Federation.Origins()
	if !received {
		return nil, nil, status.Errorf(codes.FailedPrecondition, "region %q has received no origin records from the global tier yet", o.s.region())
	}
	if m.Uplink.Connected() {
		age = 0
	}
	return table, durationpb.New(age), nil
}

// List returns every record.
func (o originRecords) List(context.Context, *nusav1.ListOriginsRequest) (*nusav1.ListOriginsResponse, error) {
	table, age, err := o.table()
	if err != nil {
		return nil, err
	}
	return &nusav1.ListOriginsResponse{Records: slices.Clone(table.Records()), Age: age}, nil
}

// Resolve chooses an origin by the topology that this region knows. A client that does not
// say where it is counts as being in this region. The age in the response is the time since
// the last message of the global tier. The path in the response says from which kind of
// values it was computed.
func (o originRecords) Resolve(_ context.Context, req *nusav1.ResolveOriginRequest) (*nusav1.ResolveOriginResponse, error) {
	table, age, err := o.table()
	if err != nil {
		return nil, err
	}
	m, err := o.s.master()
	if err != nil {
		return nil, err
	}
	if req.GetRegion() == "" && req.GetLocation() == nil {
		req = &nusav1.ResolveOriginRequest{Domain: req.GetDomain(), Region: o.s.region(), Current: req.GetCurrent()}
	}
	out, err := table.Resolve(req, m.Peers.Routers().At)
	if err != nil {
		return nil, err
	}
	out.Age = age
	return out, nil
}
