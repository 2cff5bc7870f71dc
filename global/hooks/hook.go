package hooks

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/cloudevent"
	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds and defaults of a webhook.
const (
	maxDescription  = 256
	maxSecrets      = 4
	minTimeout      = time.Second
	maxTimeout      = 30 * time.Second
	defaultTimeout  = 15 * time.Second
	maxParallel     = 8
	defaultParallel = 4
)

// ownEvents is the prefix of the types of events about webhooks: see cloudevent.Selection.
const ownEvents = "webhook."

var namePattern = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// hook is a webhook as the delivery needs it. It is not changed.
type hook struct {
	web      *nusav1.Webhook
	filter   *cloudevent.Selection
	secrets  []webhook.Secret
	timeout  time.Duration
	parallel int
}

// newHook reads a stored record. The filter of a record that a newer version wrote may not compile.
func newHook(rec *nusav1.WebhookRecord) (*hook, error) {
	w := rec.GetWebhook()
	filter, err := cloudevent.NewSelection(ownEvents, w.GetName(), w.GetTypes(), w.GetNamespaces(), w.GetFilter())
	if err != nil {
		return nil, err
	}
	h := &hook{
		web: w, filter: filter, timeout: defaultTimeout, parallel: int(cmp.Or(w.GetParallel(), defaultParallel)),
	}
	if w.GetTimeout() != nil {
		h.timeout = w.GetTimeout().AsDuration()
	}
	for i, text := range rec.GetSecrets() {
		s, err := webhook.ParseSecret(text)
		if err != nil {
			return nil, fmt.Errorf("secret %d: %w", i+1, err)
		}
		h.secrets = append(h.secrets, s)
	}
	return h, nil
}

// check returns the webhook of a request in the form that is stored. The error is a status that names
// each wrong field.
func check(w *nusav1.Webhook, secrets []string, policy *webhook.Policy) (*nusav1.Webhook, []string, error) {
	var problems []*nusav1.Problem
	wrong := func(field, format string, args ...any) {
		problems = append(problems, &nusav1.Problem{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	if !namePattern().MatchString(w.GetName()) {
		wrong("webhook.name", "%q: a name has lower-case letters, digits and hyphens, at most 63", w.GetName())
	}
	if err := policy.CheckURL(w.GetUrl()); err != nil {
		wrong("webhook.url", "%s", err)
	}
	if n := len(w.GetDescription()); n > maxDescription {
		wrong("webhook.description", "%d bytes long, the limit is %d", n, maxDescription)
	}
	cloudevent.Check(w.GetTypes(), w.GetNamespaces(), w.GetFilter(), func(part, problem string) { wrong("webhook."+part, "%s", problem) })
	if d := w.GetTimeout().AsDuration(); w.GetTimeout() != nil && (d < minTimeout || d > maxTimeout) {
		wrong("webhook.timeout", "%s is not within %s to %s", d, minTimeout, maxTimeout)
	}
	if n := w.GetParallel(); n < 0 || n > maxParallel {
		wrong("webhook.parallel", "%d is not within 1 to %d", n, maxParallel)
	}
	if len(secrets) > maxSecrets {
		wrong("secrets", "%d secrets, the limit is %d", len(secrets), maxSecrets)
	}
	var canonical []string
	for i, text := range secrets {
		s, err := webhook.ParseSecret(text)
		if err != nil {
			wrong(fmt.Sprintf("secrets[%d]", i), "%s", err)
			continue
		}
		canonical = append(canonical, s.Reveal())
	}
	if len(problems) > 0 {
		return nil, nil, rpcerr.Invalid(problems...)
	}
	return &nusav1.Webhook{
		Name: w.GetName(), Url: w.GetUrl(), Description: w.GetDescription(), Types: w.GetTypes(), Namespaces: w.GetNamespaces(),
		Filter: w.GetFilter(), Timeout: w.GetTimeout(), Parallel: w.GetParallel(),
	}, canonical, nil
}

// newID returns the random id of a new webhook.
func newID() string { return strings.ToLower(rand.Text()[:12]) }

// shown returns the webhook of a record as callers see it: without its secrets.
func shown(rec *nusav1.WebhookRecord, revision int64, status *nusav1.WebhookStatus) *nusav1.Webhook {
	out := proto.CloneOf(rec.GetWebhook())
	out.Revision, out.Secrets, out.Status = revision, int32(len(rec.GetSecrets())), status
	if out.Timeout == nil {
		out.Timeout = durationpb.New(defaultTimeout)
	}
	if out.Parallel == 0 {
		out.Parallel = defaultParallel
	}
	return out
}
