package rights

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
)

// Call is a call of an operator or of a token. The nil Call is that of another member, or of a
// server without an identity: everything is allowed to it.
type Call struct {
	// Set and Who hold at the start of the call. Standing returns what holds now.
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
	// Lasts: the call is a stream, which must end when one of its decisions no longer holds.
	Lasts bool
	// SubmitLimit returns how long the principal must wait for its next submit. It may be nil.
	SubmitLimit func() time.Duration

	checked atomic.Bool
	latest  atomic.Pointer[standing]
	mu      sync.Mutex
	held    []authz.Action // the allowed actions of a call that lasts
}

// standing is who the caller is, in one version of who may do what.
type standing struct {
	set *Set
	who authz.Principal
}

// maxHeld bounds the decisions of a stream that are made again. A stream needs one or two, and one
// with more is refused.
const maxHeld = 16

// Standing returns who may do what now, and the principal of the call.
func (c *Call) Standing() (*Set, authz.Principal) {
	if now := c.latest.Load(); now != nil {
		return now.set, now.who
	}
	return c.Set, c.Who
}

// Renew makes the call's decisions again with another set. It returns why one of them no longer
// holds, or nothing.
func (c *Call) Renew(set *Set, who authz.Principal) (ended string) {
	c.latest.Store(&standing{set, who})
	c.mu.Lock()
	held := slices.Clone(c.held)
	c.mu.Unlock()
	for _, a := range held {
		if !set.Allowed(who, a) {
			return c.why(a)
		}
	}
	return ""
}

// hold remembers an allowed action of a call that lasts. It returns false if there are too many.
func (c *Call) hold(a authz.Action) bool {
	if !c.Lasts {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Contains(c.held, a) {
		return true
	}
	if len(c.held) == maxHeld {
		return false
	}
	c.held = append(c.held, a)
	return true
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
	set, who := c.Standing()
	return set.Allowed(who, c.action(namespace, region, ""))
}

// Holds reports whether the call is allowed for an object. A call that lasts ends when that is no
// longer so.
func (c *Call) Holds(namespace, region, name string) bool {
	c.checked.Store(true)
	set, who := c.Standing()
	a := c.action(namespace, region, name)
	return set.Allowed(who, a) && c.hold(a)
}

// Check returns an error if the call is not allowed for an object.
func (c *Call) Check(namespace, region, name string) error {
	if c == nil || c.Holds(namespace, region, name) {
		return nil
	}
	return c.Refuse(c.action(namespace, region, name))
}

// Find returns what a call answers about an object that was found by a part of its name. It returns
// missing, the answer about an object that does not exist, if the caller may not even read objects of
// that namespace and region: then the caller does not learn that there is one.
func (c *Call) Find(namespace, region, name string, missing func() error) error {
	if c == nil {
		return nil
	}
	set, who := c.Standing()
	read := c.action(namespace, region, name)
	read.Verb = "read"
	err := c.Check(namespace, region, name)
	if err != nil && !set.Allowed(who, read) {
		return missing()
	}
	return err
}

// Confined reports whether there are namespaces or regions whose objects of the call's kind the
// caller may not read.
func (c *Call) Confined() bool {
	if c == nil {
		return false
	}
	set, who := c.Standing()
	return !set.Allowed(who, authz.Action{Verb: "read", Kind: c.Kind, Region: c.Region})
}

// Missing says that a confined caller finds no object whose id begins with a prefix.
func (c *Call) Missing(prefix string) string {
	_, who := c.Standing()
	return fmt.Sprintf("no %s that %s may read has an id that begins with %q", c.Kind, who.Name, prefix)
}

// Refuse returns the error of an action that is not allowed.
func (c *Call) Refuse(a authz.Action) error {
	why := c.why(a)
	if c.Denied != nil {
		c.Denied(a, why)
	}
	return status.Error(codes.PermissionDenied, why)
}

func (c *Call) why(a authz.Action) string {
	set, who := c.Standing()
	return set.Decide(who, a).Reason
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
