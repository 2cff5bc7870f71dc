package hooks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// Server is the public Webhooks service.
type Server struct {
	nusav1.UnimplementedWebhooksServer
	// Current returns the sender of the present leadership term, or nil if this server is not active.
	Current func() *Sender
}

// sender returns the present sender. It fails only just after the end of a term, because a server
// that is not active forwards calls.
func (s *Server) sender() (*Sender, error) {
	if out := s.Current(); out != nil {
		return out, nil
	}
	return nil, rpcError(state.ErrNotActive)
}

func rpcError(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return state.RPCErrors.Err(err)
}

// notFound returns NOT_FOUND for a webhook.
func notFound(name string) error {
	return rpcerr.NotFound("webhook", name, fmt.Sprintf("webhook %q does not exist: see nusa webhook list", name))
}

// Set implements nusav1.WebhooksServer.
func (s *Server) Set(ctx context.Context, req *nusav1.SetWebhookRequest) (*nusav1.SetWebhookResponse, error) {
	sender, err := s.sender()
	if err != nil {
		return nil, err
	}
	next, secrets, err := check(req.GetWebhook(), req.GetSecrets(), sender.Policy)
	if err != nil {
		return nil, err
	}
	name, made := next.GetName(), webhook.NewSecret().Reveal()
	used := false
	var rec *nusav1.WebhookRecord
	out, err := sender.change(ctx, name, byOperator, func(t *state.Tx, old *nusav1.WebhookRecord, revision int64) (*nusav1.WebhookRecord, string, error) {
		if err := state.CheckRevision("webhook "+name, req.GetRevision(), old != nil, revision); err != nil {
			return nil, "", err
		}
		rec, used = &nusav1.WebhookRecord{Webhook: proto.CloneOf(next), Secrets: secrets, Id: old.GetId()}, false
		rec.Webhook.Disabled, rec.Webhook.DisabledReason = old.GetWebhook().GetDisabled(), old.GetWebhook().GetDisabledReason()
		switch {
		case len(secrets) == 0 && old != nil:
			rec.Secrets = old.GetSecrets()
		case len(secrets) == 0:
			rec.Secrets, used = []string{made}, true
		}
		if old == nil {
			rec.Id = newID()
			if err := state.PutProgress(t, name, &nusav1.WebhookProgress{Cursor: sender.Source.Last()}); err != nil {
				return nil, "", err
			}
		}
		return rec, "set", nil
	})
	if err != nil {
		return nil, err
	}
	resp := &nusav1.SetWebhookResponse{Webhook: out}
	if used {
		resp.Secret = made
	}
	return resp, nil
}

// byOperator is the text of events about what an operator did.
const byOperator = "by an operator"

// kindOf returns the type of the event for a verb of the audit trail.
var kindOf = map[string]string{
	"set": "webhook.set", "remove": "webhook.removed", "rotate": "webhook.rotated", "disable": "webhook.disabled", "enable": "webhook.enabled",
	"skip": "webhook.skipped", "replay": "webhook.replayed",
}

// change replaces the record of a webhook, with an entry in the audit trail and an event with the text
// why. decide returns the new record and the verb; the same record means no change. The verbs skip and replay
// change what is sent, not the record.
func (s *Sender) change(ctx context.Context, name, why string, decide func(t *state.Tx, old *nusav1.WebhookRecord, revision int64) (*nusav1.WebhookRecord, string, error)) (*nusav1.Webhook, error) {
	var next *nusav1.WebhookRecord
	changed, revision := false, int64(0)
	written, err := s.Commit.Do(ctx, func(t *state.Tx) error {
		old, known := state.WebhookOf(t, name)
		var verb string
		var err error
		next, verb, err = decide(t, old, known)
		if err != nil {
			return err
		}
		changed, revision = !proto.Equal(old, next), known
		if !changed && verb != "skip" && verb != "replay" {
			return nil
		}
		// The hash of a webhook does not cover its secrets, because the trail is shown to others.
		e := audit.Entry{Verb: verb, Kind: "webhook", Name: name, After: state.AuditHash(next.GetWebhook())}
		if old != nil {
			e.Before = state.AuditHash(old.GetWebhook())
		}
		if err := t.Audit(e); err != nil {
			return err
		}
		t.Event(kindOf[verb], name, "%s", why)
		if !changed {
			return nil
		}
		return state.PutWebhook(t, next)
	})
	if err != nil {
		return nil, rpcError(err)
	}
	if changed || revision == 0 {
		revision = written
	}
	return shown(next, revision, s.statusOf(name)), nil
}

// statusOf returns how the delivery of a webhook goes. It is nil just after the webhook was created.
func (s *Sender) statusOf(name string) *nusav1.WebhookStatus {
	if r := s.of(name); r != nil {
		return r.status()
	}
	return nil
}

// Get implements nusav1.WebhooksServer.
func (s *Server) Get(_ context.Context, req *nusav1.GetWebhookRequest) (*nusav1.Webhook, error) {
	sender, err := s.sender()
	if err != nil {
		return nil, err
	}
	stored, err := sender.stored(req.GetName())
	if err != nil {
		return nil, err
	}
	return shown(stored.WebhookRecord, stored.Revision, sender.statusOf(req.GetName())), nil
}

// stored returns the record of a webhook.
func (s *Sender) stored(name string) (state.StoredWebhook, error) {
	s.State.Lock()
	defer s.State.Unlock()
	stored, ok := s.State.Webhooks.Stored[name]
	if !ok {
		return stored, notFound(name)
	}
	return stored, nil
}

// List implements nusav1.WebhooksServer.
func (s *Server) List(_ context.Context, req *nusav1.ListWebhooksRequest) (*nusav1.ListWebhooksResponse, error) {
	sender, err := s.sender()
	if err != nil {
		return nil, err
	}
	if err := filter.CheckEnum(req.GetStates()); err != nil {
		return nil, err
	}
	sender.State.Lock()
	all := maps.Clone(sender.State.Webhooks.Stored)
	sender.State.Unlock()
	out := &nusav1.ListWebhooksResponse{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		one := shown(all[name].WebhookRecord, all[name].Revision, sender.statusOf(name))
		if len(req.GetStates()) == 0 || slices.Contains(req.GetStates(), one.GetStatus().GetState()) {
			out.Webhooks = append(out.Webhooks, one)
		}
	}
	return out, nil
}

// Remove implements nusav1.WebhooksServer.
func (s *Server) Remove(ctx context.Context, req *nusav1.RemoveWebhookRequest) (*nusav1.RemoveWebhookResponse, error) {
	sender, err := s.sender()
	if err != nil {
		return nil, err
	}
	name := req.GetName()
	_, err = sender.Commit.Do(ctx, func(t *state.Tx) error {
		old, _ := state.WebhookOf(t, name)
		if old == nil {
			return notFound(name)
		}
		if err := t.Audit(audit.Entry{Verb: "remove", Kind: "webhook", Name: name, Before: state.AuditHash(old.GetWebhook())}); err != nil {
			return err
		}
		t.Event(kindOf["remove"], name, "%s", byOperator)
		return state.DeleteWebhook(t, name)
	})
	if err != nil {
		return nil, rpcError(err)
	}
	return &nusav1.RemoveWebhookResponse{}, nil
}

// Rotate implements nusav1.WebhooksServer.
func (s *Server) Rotate(ctx context.Context, req *nusav1.RotateWebhookRequest) (*nusav1.RotateWebhookResponse, error) {
	sender, err := s.sender()
	if err != nil {
		return nil, err
	}
	added, resp := webhook.NewSecret(), &nusav1.RotateWebhookResponse{}
	switch {
	case req.GetFinish() && req.GetSecret() != "":
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "secret", Message: "finish removes secrets and adds none"})
	case req.GetSecret() != "":
		added, err = webhook.ParseSecret(req.GetSecret())
		if err != nil {
			return nil, rpcerr.Invalid(&nusav1.Problem{Field: "secret", Message: err.Error()})
		}
	case !req.GetFinish():
		resp.Secret = added.Reveal()
	}
	resp.Webhook, err = sender.change(ctx, req.GetName(), byOperator, func(_ *state.Tx, old *nusav1.WebhookRecord, _ int64) (*nusav1.WebhookRecord, string, error) {
		if old == nil {
			return nil, "", notFound(req.GetName())
		}
		next := proto.CloneOf(old)
		switch {
		case req.GetFinish():
			next.Secrets = next.GetSecrets()[:min(1, len(next.GetSecrets()))]
		case len(next.GetSecrets()) >= maxSecrets:
			return nil, "", rpcerr.Invalid(&nusav1.Problem{Field: "secret", Message: fmt.Sprintf("the webhook has %d secrets, the most that are allowed: run nusa webhook rotate --finish first", maxSecrets)})
		default:
			next.Secrets = append([]string{added.Reveal()}, next.GetSecrets()...)
		}
		return next, "rotate", nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// Disable implements nusav1.WebhooksServer.
func (s *Server) Disable(ctx context.Context, req *nusav1.DisableWebhookRequest) (*nusav1.Webhook, error) {
	return s.enable(ctx, req.GetName(), "an operator disabled it")
}

// Enable implements nusav1.WebhooksServer.
func (s *Server) Enable(ctx context.Context, req *nusav1.EnableWebhookRequest) (*nusav1.Webhook, error) {
	sender, err := s.sender()
	if err != nil {
		return nil, err
	}
	if req.GetSkip() { // first, so that what is left out is not sent for a moment
		if _, err := sender.change(ctx, req.GetName(), byOperator, unchanged(req.GetName(), "skip")); err != nil {
			return nil, err
		}
	}
	if r := sender.of(req.GetName()); r != nil {
		r.hurry(req.GetSkip())
	}
	return s.enable(ctx, req.GetName(), "")
}

// unchanged is for Sender.change: the record stays, and the verb is audited.
func unchanged(name, verb string) func(*state.Tx, *nusav1.WebhookRecord, int64) (*nusav1.WebhookRecord, string, error) {
	return func(_ *state.Tx, old *nusav1.WebhookRecord, _ int64) (*nusav1.WebhookRecord, string, error) {
		if old == nil {
			return nil, "", notFound(name)
		}
		return old, verb, nil
	}
}

// enable stores whether a webhook is disabled: why is empty if it is not.
func (s *Server) enable(ctx context.Context, name, why string) (*nusav1.Webhook, error) {
	sender, err := s.sender()
	if err != nil {
		return nil, err
	}
	return sender.change(ctx, name, byOperator, func(_ *state.Tx, old *nusav1.WebhookRecord, _ int64) (*nusav1.WebhookRecord, string, error) {
		if old == nil {
			return nil, "", notFound(name)
		}
		if why != "" {
			return withDisabled(old, why), "disable", nil
		}
		return withDisabled(old, why), "enable", nil
	})
}

// errStarting says that the delivery to a webhook has not begun yet.
var errStarting = errors.New("the delivery to the webhook begins: repeat the call")
