package rights

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
)

// WhoAmI describes the caller. age is the age of a region's copy, or nil.
func (s *Set) WhoAmI(ctx context.Context, age *time.Duration) *nusav1.WhoAmIResponse {
	out := &nusav1.WhoAmIResponse{PolicyVersion: s.msg.GetVersion(), Unbound: s.Unbound()}
	if age != nil {
		out.PolicyAge = durationpb.New(*age)
	}
	out.Awaits = s.awaits
	call := Of(ctx)
	if call == nil {
		return out
	}
	out.Principal, out.Credential, out.Roles, out.Grants = call.Who.Name, "certificate", s.RolesOf(call.Who), s.grants(call.Who)
	if call.Who.Credential == Socket {
		out.Credential = "Unix socket"
	}
	if call.Token != nil {
		out.Credential, out.Expires = "token", call.Token.GetExpires()
	}
	return out
}

// grants returns the roles of a principal, and where each of them holds.
func (s *Set) grants(who authz.Principal) []*nusav1.AuthGrant {
	var out []*nusav1.AuthGrant
	for _, role := range who.Roles {
		out = append(out, &nusav1.AuthGrant{Role: role, Namespaces: who.Namespaces, Regions: who.Regions})
	}
	for i, b := range s.policy.Bindings {
		if b.Has(who) {
			out = append(out, &nusav1.AuthGrant{Role: b.Role, Binding: s.msg.GetBindings()[i].GetName(), Namespaces: b.Namespaces, Regions: b.Regions})
		}
	}
	return out
}

// CanI decides an action of the caller, or of another principal.
func (s *Set) CanI(ctx context.Context, req *nusav1.CanIRequest) (*nusav1.CanIResponse, error) {
	action := authz.Action{Verb: req.GetVerb(), Kind: req.GetKind(), Namespace: req.GetNamespace(), Region: req.GetRegion(), Name: req.GetName()}
	if err := action.Check(); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	call := Of(ctx)
	who := authz.Principal{}
	if call != nil {
		who = call.Who
	}
	if as := req.GetAs(); as != "" && as != who.Name {
		if call != nil {
			read := authz.Action{Verb: "read", Kind: "role"}
			if !s.Allowed(who, read) {
				return nil, call.Refuse(read)
			}
		}
		var err error
		who, err = s.Principal(as)
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	if who.Name == "" {
		return &nusav1.CanIResponse{Allowed: true, Reason: "the server has no identity, so every caller may do everything"}, nil
	}
	d, steps := s.Explain(who, action)
	out := &nusav1.CanIResponse{Allowed: d.Allowed, Reason: d.Reason, Rule: d.Rule, Principal: who.Name, Depends: d.Depends}
	if !d.Allowed && !d.Depends && s.Somewhere(who, action) {
		out.Reason += "; it is allowed in some namespaces or regions: name one"
	}
	for _, step := range steps {
		out.Steps = append(out.Steps, s.StepMessage(step))
	}
	return out, nil
}

// MayGiveRoles returns an error if the caller may not make a token with roles. Otherwise who may create
// tokens could make one with more rights than the own ones.
func MayGiveRoles(ctx context.Context, roles []string) error {
	call := Of(ctx)
	if call == nil || len(roles) == 0 {
		return nil
	}
	set, who := call.Standing()
	if a := (authz.Action{Verb: "set", Kind: "role"}); !set.Allowed(who, a) {
		return call.Refuse(a)
	}
	return nil
}

// codeOf maps the errors of changes to gRPC codes.
var codeOf = []struct {
	err  error
	code codes.Code
}{
	{ErrUnknown, codes.NotFound},
	{ErrFull, codes.ResourceExhausted},
	{ErrLockout, codes.FailedPrecondition},
	{ErrLast, codes.FailedPrecondition},
	{ErrInUse, codes.FailedPrecondition},
	{ErrInvalid, codes.InvalidArgument},
	{ErrReplayed, codes.Unauthenticated},
}

// StatusError returns the gRPC status of an error of a change, and other errors unchanged.
func StatusError(err error) error {
	for _, c := range codeOf {
		if errors.Is(err, c.err) {
			return status.Error(c.code, err.Error())
		}
	}
	return err
}

// Roles returns the built-in roles and then the stored ones.
func (s *Set) Roles() []*nusav1.AuthRole {
	var out []*nusav1.AuthRole
	for _, r := range authz.BuiltinRoles() {
		out = append(out, roleMessage(r, true))
	}
	return append(out, storedRoles(s.msg)...)
}

// Bindings returns the stored bindings.
func (s *Set) Bindings() []*nusav1.AuthBinding { return s.msg.GetBindings() }

// Tokens returns the tokens without the hashes of their secrets, sorted by accessor.
func (s *Set) Tokens() []*nusav1.AccessToken {
	var out []*nusav1.AccessToken
	for _, accessor := range slices.Sorted(maps.Keys(s.tokens)) {
		out = append(out, shown(s.tokens[accessor]))
	}
	return out
}

// StepMessage returns a step of an explanation, with the name of the binding that gave the role.
func (s *Set) StepMessage(step authz.Step) *nusav1.AccessStep {
	out := &nusav1.AccessStep{Role: step.Role, Number: int32(step.Number), Rule: step.Rule.String(), Misses: step.Misses}
	if step.Given > 0 {
		out.Binding = s.msg.GetBindings()[step.Given-1].GetName()
	}
	return out
}
