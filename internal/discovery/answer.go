package discovery

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// defaultNamespace is the namespace of a request that names none.
const defaultNamespace = "default"

// ErrUnknown: the store was never filled, so it cannot say that a service has no instance.
var ErrUnknown = status.Error(codes.Unavailable, "nothing is known about services yet: there was no contact to the servers that know them")

// Answer are the instances of a service, and why they come in this order.
type Answer struct {
	Regions []catalog.RegionInstances
	Chosen  string
	// Ages has the age of each region's instances, and Age the one of the first region.
	Ages []time.Duration
	Age  time.Duration
}

// only removes the regions that keep does not allow.
func (a *Answer) only(keep func(region string) bool, from string) {
	var out Answer
	for n, r := range a.Regions {
		if keep(r.Region) {
			out.Regions, out.Ages = append(out.Regions, r), append(out.Ages, a.Ages[n])
		}
	}
	if len(out.Ages) > 0 {
		out.Age = out.Ages[0]
	}
	out.Chosen = catalog.Chosen(out.Regions, from)
	*a = out
}

// Answer returns the instances of a service, the nearest region first. from is the client's region. It
// is the store's own region if it is empty. distance may be nil: then the distances of the roster count.
// The error is ErrUnknown.
func (s *Store) Answer(namespace, name, tag, from string, distance func(region string) catalog.Distance) (Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		return Answer{}, ErrUnknown
	}
	s.turn++
	q := catalog.Query{Tag: tag, From: cmp.Or(from, s.roster.Own), Distance: distance, Turn: s.turn}
	if distance == nil {
		q.Distance = func(region string) catalog.Distance {
			r, _ := s.roster.find(region)
			return r.Distance
		}
		if from != "" && from != s.roster.Own {
			q.Distance = nil
		}
	}
	out := Answer{Regions: catalog.Order(s.find(namespace, name), q)}
	out.Chosen = catalog.Chosen(out.Regions, q.From)
	for _, r := range out.Regions {
		out.Ages = append(out.Ages, s.age(r.Region))
	}
	if len(out.Ages) > 0 {
		out.Age = out.Ages[0]
	}
	return out, nil
}

// Service serves Services from a store.
type Service struct {
	nusav1.UnimplementedServicesServer
	// Store returns the store, or an error while this server has none.
	Store func() (*Store, error)
	// May reports whether the caller may read the services of a namespace in a region. An empty region
	// stands for all of them.
	May func(ctx context.Context, namespace, region string) bool
	// Distances returns the distances from a region. nil: those of the store.
	Distances func(from string) func(region string) catalog.Distance
	// Exists reports whether there is a region. nil: this server may not know all regions.
	Exists func(region string) bool
}

// List returns the services that the caller may read.
func (v *Service) List(ctx context.Context, req *nusav1.ListServicesRequest) (*nusav1.ListServicesResponse, error) {
	s, err := v.Store()
	if err != nil {
		return nil, err
	}
	return s.List(req, func(namespace, region string) bool { return v.May(ctx, namespace, region) })
}

// Resolve returns the instances of a service.
func (v *Service) Resolve(ctx context.Context, req *nusav1.ResolveServiceRequest) (*nusav1.ResolveServiceResponse, error) {
	s, err := v.Store()
	if err != nil {
		return nil, err
	}
	namespace := cmp.Or(req.GetNamespace(), defaultNamespace)
	if !catalog.IsLabel(req.GetName()) {
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "name", Message: "not a service's name: 1 to 63 of a-z, 0-9 and -"})
	}
	if from := req.GetFrom(); from != "" && v.Exists != nil && !v.Exists(from) {
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "from", Message: "region " + strconv.Quote(from) + " does not exist: `nusa region list` shows the regions"})
	}
	var distance func(string) catalog.Distance
	if v.Distances != nil && req.GetFrom() != "" {
		distance = v.Distances(req.GetFrom())
	}
	a, err := s.Answer(namespace, req.GetName(), req.GetTag(), req.GetFrom(), distance)
	if err != nil {
		return nil, err
	}
	a.only(func(region string) bool { return v.May(ctx, namespace, region) }, cmp.Or(req.GetFrom(), s.Roster().Own))
	out := &nusav1.ResolveServiceResponse{Namespace: namespace, Name: req.GetName(), Chosen: a.Chosen, Age: durationpb.New(a.Age)}
	for n, r := range a.Regions {
		w := &nusav1.ServiceRegionInstances{Region: r.Region, Age: durationpb.New(a.Ages[n])}
		if r.Distance.Source != topology.None {
			w.Rtt, w.Source = durationpb.New(r.Distance.RTT), nusav1.RTTSource(r.Distance.Source)
		}
		for _, i := range r.Instances {
			w.Instances = append(w.Instances, instanceToProto(i))
		}
		out.Regions = append(out.Regions, w)
		if req.GetNearest() {
			break
		}
	}
	if len(out.GetRegions()) == 0 {
		what := "service " + namespace + "/" + req.GetName()
		if req.GetTag() != "" {
			what += " with the tag " + req.GetTag()
		}
		return nil, rpcerr.NotFound("service", req.GetName(), what+" has no healthy instance: `nusa service list` shows the services")
	}
	return out, nil
}
