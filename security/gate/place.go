package gate

import (
	"cmp"
	"strings"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// place is the object of a call, as far as the request names it. An empty namespace or region
// stands for all of them.
type place struct{ namespace, region, name string }

// reader reads the place of a request. It returns false if the request does not say where the
// object is. Then the handler finds the object, and asks rights.Call.
type reader func(req any) (place, bool)

// everywhere is for calls on no particular namespace or region.
func everywhere(any) (place, bool) { return place{}, true }

// unknown is for calls whose handler finds the object.
func unknown(any) (place, bool) { return place{}, false }

// refPlace returns the place of a job. A job of the federation is in no particular region.
func refPlace(ref *nusav1.JobRef) place {
	p := place{namespace: ref.GetNamespace(), region: ref.GetRegion(), name: ref.GetName()}
	if p.namespace == "" {
		p.namespace = job.DefaultNamespace
	}
	return p
}

// ofJob is for requests with a reference to a job.
func ofJob(req any) (place, bool) {
	r, ok := req.(interface{ GetJob() *nusav1.JobRef })
	if !ok {
		return place{}, false
	}
	return refPlace(r.GetJob()), true
}

// ofWorkflowRun is for requests about a run of a workflow, whose name begins with that of the workflow.
func ofWorkflowRun(req any) (place, bool) {
	r, ok := req.(interface{ GetRun() *nusav1.JobRef })
	if !ok {
		return place{}, false
	}
	p := refPlace(r.GetRun())
	p.name, _, _ = strings.Cut(p.name, string(job.RunMark))
	return p, true
}

// ofOverride is for requests about what one region runs of a job of the federation.
func ofOverride(req any) (place, bool) {
	r, ok := req.(interface {
		GetJob() *nusav1.JobRef
		GetRegion() string
	})
	if !ok {
		return place{}, false
	}
	p := refPlace(r.GetJob())
	p.region = r.GetRegion()
	return p, true
}

// ofNamespace is for lists of one namespace, or of all.
func ofNamespace(req any) (place, bool) {
	r, ok := req.(interface{ GetNamespace() string })
	if !ok {
		return place{}, false
	}
	return place{namespace: r.GetNamespace()}, true
}

// ofService is for requests about a service of a namespace.
func ofService(req any) (place, bool) {
	r, ok := req.(*nusav1.ResolveServiceRequest)
	return place{namespace: cmp.Or(r.GetNamespace(), job.DefaultNamespace), name: r.GetName()}, ok
}

// ofSemaphore is for requests about a semaphore of a namespace.
func ofSemaphore(req any) (place, bool) {
	r, ok := req.(interface {
		GetNamespace() string
		GetName() string
	})
	if !ok {
		return place{}, false
	}
	return place{namespace: cmp.Or(r.GetNamespace(), job.DefaultNamespace), name: r.GetName()}, true
}

// ofRegion is for requests that name a region, or none.
func ofRegion(req any) (place, bool) {
	r, ok := req.(interface{ GetRegion() string })
	if !ok {
		return place{}, false
	}
	return place{region: r.GetRegion()}, true
}

// ofNode is for requests that name a node, perhaps without its region.
func ofNode(req any) (place, bool) {
	r, ok := req.(interface {
		GetRegion() string
		GetId() string
	})
	if !ok || r.GetRegion() == "" {
		return place{}, false
	}
	return place{region: r.GetRegion(), name: r.GetId()}, true
}

// ofPool is for the policy of a node pool.
func ofPool(req any) (place, bool) {
	r, ok := req.(*nusav1.SetPoolRequest)
	return place{region: r.GetRegion(), name: r.GetPool().GetName()}, ok
}

// ofName is for requests whose name is that of a region.
func ofName(req any) (place, bool) {
	r, ok := req.(interface{ GetName() string })
	if !ok {
		return place{}, false
	}
	return place{region: r.GetName(), name: r.GetName()}, true
}

// ofDefinition is for the definition of a region.
func ofDefinition(req any) (place, bool) {
	r, ok := req.(*nusav1.DefineRegionRequest)
	name := r.GetDefinition().GetName()
	return place{region: name, name: name}, ok
}

// ofAllocations is for a list of allocations.
func ofAllocations(req any) (place, bool) {
	r, ok := req.(*nusav1.ListAllocationsRequest)
	return jobAndRegion(r), ok
}

// ofTasks is for a list of the history of allocations.
func ofTasks(req any) (place, bool) {
	r, ok := req.(*nusav1.ListTasksRequest)
	return jobAndRegion(r), ok
}

// jobAndRegion returns the place of a request that may name a job, a namespace or a region.
func jobAndRegion(r interface {
	GetRegion() string
	GetJob() *nusav1.JobRef
}) place {
	p := place{region: r.GetRegion()}
	if ref := r.GetJob(); ref.GetName() != "" || ref.GetNamespace() != "" {
		p = refPlace(ref)
		p.region = cmp.Or(p.region, r.GetRegion())
	}
	if a, b := r.GetRegion(), r.GetJob().GetRegion(); a != "" && b != "" && a != b {
		p.region = "" // the list may be that of both
	}
	return p
}

// ofNewNamespace is for the request that stores a namespace.
func ofNewNamespace(req any) (place, bool) {
	r, ok := req.(*nusav1.SetNamespaceRequest)
	name := r.GetNamespace().GetName()
	return place{namespace: name, name: name}, ok
}

// ofNamespaceName is for requests whose name is that of a namespace.
func ofNamespaceName(req any) (place, bool) {
	r, ok := req.(interface{ GetName() string })
	if !ok {
		return place{}, false
	}
	return place{namespace: r.GetName(), name: r.GetName()}, true
}

// ofMember is for requests that name a member or a pool of a region, or a region.
func ofMember(req any) (place, bool) {
	r, ok := req.(interface {
		GetRegion() string
		GetName() string
	})
	if !ok {
		return place{}, false
	}
	return place{region: r.GetRegion(), name: r.GetName()}, true
}
