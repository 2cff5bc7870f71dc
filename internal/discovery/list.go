package discovery

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// pageServices bounds the services of a page, and pageInstances its instances: about 1 MiB.
	pageServices, pageInstances = 1000, 5000
)

// List returns a page of the services that a request asks for, sorted by namespace and name. It leaves out the
// instances that may does not allow. The age is that of the oldest region. The error is ErrUnknown or says what is
// wrong with the request.
func (s *Store) List(req *nusav1.ListServicesRequest, may func(namespace, region string) bool) (*nusav1.ListServicesResponse, error) {
	limit := cmp.Or(int(req.GetLimit()), pageServices)
	if limit < 1 || limit > pageServices {
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "limit", Message: fmt.Sprintf("must be 1..%d", pageServices)})
	}
	after, err := keyOfToken(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		return nil, ErrUnknown
	}
	age := time.Duration(0)
	for name := range s.regions {
		age = max(age, s.age(name))
	}
	out := &nusav1.ListServicesResponse{Age: durationpb.New(age)}
	for _, key := range s.from(serviceKey{req.GetNamespace(), req.GetName()}, after) {
		if req.GetNamespace() != "" && key.namespace != req.GetNamespace() {
			break
		}
		if req.GetName() != "" && key.name != req.GetName() {
			continue
		}
		sum, instances := s.summary(key, req.GetTag(), may)
		if len(instances) == 0 {
			continue
		}
		if n := len(out.GetServices()); n == limit || n > 0 && req.GetWithInstances() && len(out.GetInstances())+len(instances) > pageInstances {
			last := out.GetServices()[n-1]
			out.NextPageToken = last.GetNamespace() + "/" + last.GetName()
			break
		}
		out.Services = append(out.Services, sum)
		if req.GetWithInstances() {
			for _, i := range instances {
				out.Instances = append(out.Instances, instanceToProto(i))
			}
		}
	}
	return out, nil
}

// from returns the services in order, from the first one of a namespace, and after another one. The store's lock is
// held.
func (s *Store) from(first, after serviceKey) []serviceKey {
	if s.keys == nil {
		s.keys = slices.SortedFunc(maps.Keys(s.services), compareServices)
	}
	n, _ := slices.BinarySearchFunc(s.keys, first, compareServices)
	past, found := slices.BinarySearchFunc(s.keys, after, compareServices)
	if found {
		past++
	}
	return s.keys[max(n, past):]
}

// summary returns a service with its instances that have a tag and that may allows. The store's lock is held.
func (s *Store) summary(key serviceKey, tag string, may func(namespace, region string) bool) (sum *nusav1.ServiceSummary, instances []*catalog.Instance) {
	sum = &nusav1.ServiceSummary{Namespace: key.namespace, Name: key.name}
	tags := map[string]bool{}
	for _, r := range catalog.Order(s.find(key.namespace, key.name), catalog.Query{Tag: tag}) {
		if !may(key.namespace, r.Region) {
			continue
		}
		sum.Regions, sum.Instances = append(sum.Regions, r.Region), sum.GetInstances()+int32(len(r.Instances))
		for _, i := range r.Instances {
			for _, t := range i.Tags {
				tags[t] = true
			}
		}
		instances = append(instances, r.Instances...)
	}
	sum.Tags = slices.Sorted(maps.Keys(tags))
	return sum, instances
}

func compareServices(a, b serviceKey) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}

// keyOfToken returns the service after which a page begins.
func keyOfToken(token string) (serviceKey, error) {
	namespace, name, _ := strings.Cut(token, "/")
	if token != "" && (!catalog.IsLabel(namespace) || !catalog.IsLabel(name)) {
		return serviceKey{}, rpcerr.NoPage("page_token", token)
	}
	return serviceKey{namespace: namespace, name: name}, nil
}

// Targets returns the targets of all services that a request asks for, from all pages.
func Targets(ctx context.Context, list func(context.Context, *nusav1.ListServicesRequest) (*nusav1.ListServicesResponse, error), namespace, name string) ([]TargetGroup, error) {
	out := []TargetGroup{} // Prometheus wants a list, also an empty one
	req := &nusav1.ListServicesRequest{Namespace: namespace, Name: name, WithInstances: true}
	for {
		page, err := list(ctx, req)
		if err != nil {
			return nil, err
		}
		out = append(out, targetGroups(page.GetInstances())...)
		req.PageToken = page.GetNextPageToken()
		if req.PageToken == "" {
			return out, nil
		}
	}
}
