package rights

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
)

// Call is a call of an operator or of a token. The nil Call is that of another member, or of a
// server without an identity: everything is allowed to it.
type Call struct {
	Set *Set
	Who authz.Principal
	// Token is the credential. It is nil for a certificate.
	Token *nusav1.AccessToken
	// Verb and Kind are what the call does. Both are empty for calls that every principal may
	// make.
	Verb, Kind string
	// Region is the server's own region, which holds for objects without another one. It is empty at
	// a global server.
	Region string
	// All: the call was allowed for all objects that the request asks for, so a list is not
	// filtered.
	All bool
	// Denied is called for each denial, with the reason. It may be nil.
	Denied func(a authz.Action, why string)

	checked atomic.Bool
}

type callKey struct{}

// With returns a context with a call.
func With(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// Of returns the call of a context, or nil.
func Of(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// Filtered reports whether a list must leave out objects that the principal may not read.
func (c *Call) Filtered() bool {
	if c == nil {
		return false
	}
	c.checked.Store(true)
	return !c.All
}

// May reports whether the call is allowed for an object of a namespace and region. A list leaves
// out the others. An empty text stands for every namespace or region.
func (c *Call) May(namespace, region string) bool {
	if c == nil {
		return true
	}
	c.checked.Store(true)
	return c.Set.Allowed(c.Who, c.action(namespace, region, ""))
}

// Check returns an error if the call is not allowed for an object.
func (c *Call) Check(namespace, region, name string) error {
	if c.May(namespace, region) {
		return nil
	}
	return c.Refuse(c.action(namespace, region, name))
}

// Refuse returns the error of an action that is not allowed.
func (c *Call) Refuse(a authz.Action) error {
	why := c.Set.Decide(c.Who, a).Reason
	if c.Denied != nil {
		c.Denied(a, why)
	}
	return status.Error(codes.PermissionDenied, why)
}

// Undecided notes that the handler must ask for a decision before it answers.
func (c *Call) Undecided() { c.checked.Store(false) }

// Checked reports whether a handler has asked for a decision about an object.
func (c *Call) Checked() bool { return c == nil || c.checked.Load() }

// action returns the call's action on an object of a namespace and region.
func (c *Call) action(namespace, region, name string) authz.Action {
	if region == "" {
		region = c.Region
	}
	return authz.Action{Verb: c.Verb, Kind: c.Kind, Namespace: namespace, Region: region, Name: name}
}
