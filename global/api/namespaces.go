package api

import (
	"context"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// namespacesAPI is the public Namespaces service. The limits of namespaces are a part of who may do
// what, and travel to the regions with that.
type namespacesAPI struct {
	nusav1.UnimplementedNamespacesServer
	a *authAPI
}

// Get implements nusav1.NamespacesServer.
func (n *namespacesAPI) Get(_ context.Context, req *nusav1.GetNamespaceRequest) (*nusav1.Namespace, error) {
	set, err := n.a.set()
	if err != nil {
		return nil, err
	}
	found, err := set.Namespace(req.GetName())
	return found, rights.StatusError(err)
}

// List implements nusav1.NamespacesServer.
func (n *namespacesAPI) List(ctx context.Context, _ *nusav1.ListNamespacesRequest) (*nusav1.ListNamespacesResponse, error) {
	set, err := n.a.set()
	if err != nil {
		return nil, err
	}
	return &nusav1.ListNamespacesResponse{Namespaces: set.ListNamespaces(rights.Of(ctx))}, nil
}

// Set implements nusav1.NamespacesServer.
func (n *namespacesAPI) Set(ctx context.Context, req *nusav1.SetNamespaceRequest) (*nusav1.Namespace, error) {
	return req.GetNamespace(), n.a.change(ctx, "set", "namespace", req.GetNamespace().GetName(), func(s *rights.Set) (*rights.Set, error) {
		return s.SetNamespace(req.GetNamespace())
	})
}

// Remove implements nusav1.NamespacesServer.
func (n *namespacesAPI) Remove(ctx context.Context, req *nusav1.RemoveNamespaceRequest) (*nusav1.RemoveNamespaceResponse, error) {
	return &nusav1.RemoveNamespaceResponse{}, n.a.change(ctx, "remove", "namespace", req.GetName(), func(s *rights.Set) (*rights.Set, error) {
		return s.RemoveNamespace(req.GetName())
	})
}
