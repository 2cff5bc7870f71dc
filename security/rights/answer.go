package rights

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
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

// maxActions bounds the actions of one question.
const maxActions = 64

// actionsOf returns the actions of a question: the one of verb and kind, or nil, and the others.
func actionsOf(req *nusav1.CanIRequest) (first *authz.Action, more []authz.Action, err error) {
	of := func(verb, kind string) authz.Action {
		return authz.Action{Verb: verb, Kind: kind, Namespace: req.GetNamespace(), Region: req.GetRegion(), Name: req.GetName()}
	}
	var problems []*nusav1.Problem
	if n := len(req.GetActions()); n > maxActions {
		return nil, nil, rpcerr.Invalid(&nusav1.Problem{Field: "actions", Message: fmt.Sprintf("%d actions, at most %d are allowed", n, maxActions)})
	}
	for i, text := range req.GetActions() {
		verb, kind, _ := strings.Cut(text, " ")
		more = append(more, of(verb, kind))
		if err := more[i].Check(); err != nil {
			problems = append(problems, &nusav1.Problem{Field: fmt.Sprintf("actions[%d]", i), Message: err.Error()})
		}
	}
	if len(problems) > 0 {
		return nil, nil, rpcerr.Invalid(problems...)
	}
	if len(more) > 0 && req.GetVerb() == "" && req.GetKind() == "" {
		return nil, more, nil
	}
	one := of(req.GetVerb(), req.GetKind())
	if err := one.Check(); err != nil {
		return nil, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &one, more, nil
}

// CanI decides actions of the caller, or of another principal.
func (s *Set) CanI(ctx context.Context, req *nusav1.CanIRequest) (*nusav1.CanIResponse, error) {
	first, more, err := actionsOf(req)
	if err != nil {
		return nil, err
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
		who, err = s.Principal(as)
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	out := &nusav1.CanIResponse{Principal: who.Name}
	for i, action := range more {
		a := &nusav1.CanIAnswer{Action: req.GetActions()[i], Allowed: true, Reason: noIdentity}
		if who.Name != "" {
			var d authz.Decision
			d, a.Somewhere, _ = s.explain(who, action)
			a.Allowed, a.Reason, a.Depends = d.Allowed, d.Reason, d.Depends
		}
		out.Answers = append(out.Answers, a)
	}
	switch {
	case first == nil:
	case who.Name == "":
		out.Allowed, out.Reason = true, noIdentity
	default:
		d, _, steps := s.explain(who, *first)
		out.Allowed, out.Reason, out.Rule, out.Depends = d.Allowed, d.Reason, d.Rule, d.Depends
		for _, step := range steps {
			out.Steps = append(out.Steps, s.StepMessage(step))
		}
	}
	return out, nil
}

// noIdentity is the reason of every answer of a server without an identity.
const noIdentity = "the server has no identity, so every caller may do everything"

// explain decides an action. somewhere: it is refused, but allowed in some of the places.
func (s *Set) explain(who authz.Principal, action authz.Action) (d authz.Decision, somewhere bool, steps []authz.Step) {
	d, steps = s.Explain(who, action)
	somewhere = !d.Allowed && !d.Depends && s.Somewhere(who, action)
	if somewhere {
		d.Reason += "; it is allowed in some namespaces or regions: name one"
	}
	return d, somewhere, steps
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
