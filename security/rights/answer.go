package rights

import (
	"context"
	"errors"
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
	call := Of(ctx)
	if call == nil {
		return out
	}
	out.Principal, out.Credential, out.Roles, out.Grants = call.Who.Name, "certificate", s.RolesOf(call.Who), s.Grants(call.Who)
	if call.Token != nil {
		out.Credential, out.Expires = "token", call.Token.GetExpires()
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
	out := &nusav1.CanIResponse{Allowed: d.Allowed, Reason: d.Reason, Rule: d.Rule, Principal: who.Name}
	for _, step := range steps {
		out.Steps = append(out.Steps, s.StepMessage(step))
	}
	return out, nil
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
