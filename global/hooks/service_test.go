package hooks

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestBadWebhooks(t *testing.T) {
	w := newWorld(t)
	w.policy.AllowHTTP, w.policy.AllowPrivate = false, nil
	good := func() *nusav1.SetWebhookRequest { return to("hook", "https://example.com/hook") }
	for field, change := range map[string]func(*nusav1.SetWebhookRequest){
		"webhook.name: ":                        func(r *nusav1.SetWebhookRequest) { r.Webhook.Name = "A b" },
		"webhook.url: http is not encrypted":    func(r *nusav1.SetWebhookRequest) { r.Webhook.Url = "http://example.com" },
		"webhook.url: requests to this address": func(r *nusav1.SetWebhookRequest) { r.Webhook.Url = "https://169.254.169.254/latest" },
		"webhook.url: give the URL":             func(r *nusav1.SetWebhookRequest) { r.Webhook.Url = "" },
		"webhook.url: 2": func(r *nusav1.SetWebhookRequest) {
			r.Webhook.Url = "https://e.com/" + strings.Repeat("a", webhook.MaxURL)
		},
		"webhook.description: ":   func(r *nusav1.SetWebhookRequest) { r.Webhook.Description = strings.Repeat("a", 300) },
		"webhook.types: types[0]": func(r *nusav1.SetWebhookRequest) { r.Webhook.Types = []string{"*job"} },
		"webhook.types: types[0]: \"nope.*\": no event has this type": func(r *nusav1.SetWebhookRequest) { r.Webhook.Types = []string{"nope.*"} },
		"webhook.namespaces: namespaces[0]":                           func(r *nusav1.SetWebhookRequest) { r.Webhook.Namespaces = []string{""} },
		"webhook.filter: expression does not compile at column 27: an event has no field": func(r *nusav1.SetWebhookRequest) {
			r.Webhook.Filter = `event.type == "a" && event.what == 1`
		},
		"webhook.timeout: ":  func(r *nusav1.SetWebhookRequest) { r.Webhook.Timeout = durationpb.New(31e9) },
		"webhook.parallel: ": func(r *nusav1.SetWebhookRequest) { r.Webhook.Parallel = 9 },
		"secrets[1]: ": func(r *nusav1.SetWebhookRequest) {
			r.Secrets = []string{webhook.NewSecret().Reveal(), "whsec_c2hvcnQ="}
		},
		"secrets: ": func(r *nusav1.SetWebhookRequest) {
			for range maxSecrets + 1 {
				r.Secrets = append(r.Secrets, webhook.NewSecret().Reveal())
			}
		},
	} {
		req := good()
		change(req)
		_, err := w.api.Set(t.Context(), req)
		problems := rpcerr.Problems(err)
		if status.Code(err) != codes.InvalidArgument || len(problems) != 1 || !strings.HasPrefix(problems[0].GetField()+": "+problems[0].GetMessage(), field) {
			t.Errorf("%s: %v, %v", field, err, problems)
		}
		if strings.Contains(fmt.Sprint(err), "c2hvcnQ=") {
			t.Errorf("a secret is in the error: %v", err)
		}
	}
	if _, err := w.api.Set(t.Context(), good()); err != nil {
		t.Error(err)
	}
	if _, err := w.api.Set(t.Context(), &nusav1.SetWebhookRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

func TestRevisionsAndBounds(t *testing.T) {
	w := newWorld(t)
	req := to("hook", "http://127.0.0.1:1/")
	first := w.set(req).GetWebhook()
	if same := w.set(req); same.GetWebhook().GetRevision() != first.GetRevision() || same.GetSecret() != "" {
		t.Errorf("the same webhook again: %v", same)
	}
	for revision, want := range map[int64]codes.Code{-1: codes.Aborted, first.GetRevision() + 1: codes.Aborted, first.GetRevision(): codes.OK} {
		changed := proto.CloneOf(req)
		changed.Revision = revision
		if _, err := w.api.Set(t.Context(), changed); status.Code(err) != want {
			t.Errorf("revision %d: %v, want %s", revision, err, want)
		}
	}
	for i := 1; i < state.MaxWebhooks; i++ {
		if _, err := w.api.Set(t.Context(), to(fmt.Sprintf("hook-%d", i), "http://127.0.0.1:1/")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.api.Set(t.Context(), to("one-more", "http://127.0.0.1:1/")); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("more than the bound: %v", err)
	}
	if _, err := w.api.Set(t.Context(), req); err != nil {
		t.Errorf("a webhook that exists: %v", err)
	}
	if _, err := w.api.Disable(t.Context(), &nusav1.DisableWebhookRequest{Name: "hook-2"}); err != nil {
		t.Fatal(err)
	}
	w.awaitStatus("hook-2", "disabled", func(st *nusav1.WebhookStatus) bool {
		return st.GetState() == nusav1.WebhookState_WEBHOOK_STATE_DISABLED
	})
	off := &nusav1.ListWebhooksRequest{States: []nusav1.WebhookState{nusav1.WebhookState_WEBHOOK_STATE_DISABLED}}
	if list, err := w.api.List(t.Context(), off); err != nil || len(list.GetWebhooks()) != 1 || list.GetWebhooks()[0].GetName() != "hook-2" {
		t.Errorf("disabled webhooks: %v, %v", list, err)
	}
	list, err := w.api.List(t.Context(), &nusav1.ListWebhooksRequest{})
	if err != nil || len(list.GetWebhooks()) != state.MaxWebhooks || list.GetWebhooks()[0].GetName() != "hook" {
		t.Errorf("%d webhooks, %v", len(list.GetWebhooks()), err)
	}
}

func TestUnknownWebhook(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	calls := map[string]func() error{
		"get":     func() error { _, err := w.api.Get(ctx, &nusav1.GetWebhookRequest{Name: "x"}); return err },
		"remove":  func() error { _, err := w.api.Remove(ctx, &nusav1.RemoveWebhookRequest{Name: "x"}); return err },
		"rotate":  func() error { _, err := w.api.Rotate(ctx, &nusav1.RotateWebhookRequest{Name: "x"}); return err },
		"test":    func() error { _, err := w.api.Test(ctx, &nusav1.TestWebhookRequest{Name: "x"}); return err },
		"log":     func() error { _, err := w.api.Log(ctx, &nusav1.WebhookLogRequest{Name: "x"}); return err },
		"replay":  func() error { _, err := w.api.Replay(ctx, &nusav1.ReplayWebhookRequest{Name: "x"}); return err },
		"enable":  func() error { _, err := w.api.Enable(ctx, &nusav1.EnableWebhookRequest{Name: "x"}); return err },
		"disable": func() error { _, err := w.api.Disable(ctx, &nusav1.DisableWebhookRequest{Name: "x"}); return err },
	}
	for name, call := range calls {
		if err := call(); status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "nusa webhook list") {
			t.Errorf("%s: %v", name, err)
		}
	}
	none := &Server{Current: func() *Sender { return nil }}
	if _, err := none.List(ctx, &nusav1.ListWebhooksRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a server that is not active: %v", err)
	}
}

// TestSecretsAreReturnedOnce: no later answer, event, audit entry or log line has a secret.
func TestSecretsAreReturnedOnce(t *testing.T) {
	w, e, ctx := newWorld(t), newEndpoint(t, always(200)), t.Context()
	first := w.set(to("hook", e.URL)).GetSecret()
	if _, err := webhook.ParseSecret(first); err != nil {
		t.Fatal(err)
	}
	rotated, err := w.api.Rotate(ctx, &nusav1.RotateWebhookRequest{Name: "hook"})
	if err != nil {
		t.Fatal(err)
	}
	given := webhook.NewSecret().Reveal()
	third, err := w.api.Rotate(ctx, &nusav1.RotateWebhookRequest{Name: "hook", Secret: given})
	if err != nil || third.GetSecret() != "" || third.GetWebhook().GetSecrets() != 3 {
		t.Fatalf("%v, %v", third, err)
	}
	w.set(to("hook", e.URL)) // keeps the secrets
	n := w.log.add("job.submitted", "a/b", "a")
	e.await(t, "the event", func() bool { return e.accepted[n] == 1 })
	secrets := []string{given, rotated.GetSecret(), first}
	for _, secret := range secrets {
		verify(t, secret, e.headers, e.body)
	}
	if got := len(strings.Fields(e.headers.Get("webhook-signature"))); got != 3 {
		t.Errorf("%d signatures", got)
	}
	var shown strings.Builder
	note := func(m proto.Message, err error) {
		if err != nil {
			t.Error(err)
		}
		shown.WriteString(prototext.Format(m))
	}
	note(w.api.Get(ctx, &nusav1.GetWebhookRequest{Name: "hook"}))
	note(w.api.List(ctx, &nusav1.ListWebhooksRequest{}))
	note(w.api.Log(ctx, &nusav1.WebhookLogRequest{Name: "hook"}))
	note(w.api.Test(ctx, &nusav1.TestWebhookRequest{Name: "hook"}))
	note(w.api.Disable(ctx, &nusav1.DisableWebhookRequest{Name: "hook"}))
	note(w.api.Enable(ctx, &nusav1.EnableWebhookRequest{Name: "hook"}))
	finished, err := w.api.Rotate(ctx, &nusav1.RotateWebhookRequest{Name: "hook", Finish: true})
	note(finished, err)
	if finished.GetWebhook().GetSecrets() != 1 || finished.GetSecret() != "" {
		t.Errorf("%v", finished)
	}
	for _, secret := range secrets {
		if strings.Contains(shown.String(), strings.TrimPrefix(secret, "whsec_")) {
			t.Errorf("an answer has a secret:\n%s", shown.String())
		}
	}
	again := w.log.add("job.submitted", "a/b", "a")
	e.await(t, "the event", func() bool { return e.accepted[again] == 1 })
	verify(t, given, e.headers, e.body)
	if got := len(strings.Fields(e.headers.Get("webhook-signature"))); got != 1 {
		t.Errorf("%d signatures after the end of the rotation", got)
	}
	for range maxSecrets - 1 {
		if _, err := w.api.Rotate(ctx, &nusav1.RotateWebhookRequest{Name: "hook"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.api.Rotate(ctx, &nusav1.RotateWebhookRequest{Name: "hook"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("more secrets than are allowed: %v", err)
	}
}

func TestTests(t *testing.T) {
	w := newWorld(t)
	huge := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.WriteHeader(http.StatusTeapot)
		_, _ = rw.Write([]byte(strings.Repeat("x", 1<<20)))
	}))
	defer huge.Close()
	w.set(to("hook", huge.URL))
	if _, err := w.api.Disable(t.Context(), &nusav1.DisableWebhookRequest{Name: "hook"}); err != nil {
		t.Fatal(err)
	}
	out, err := w.api.Test(t.Context(), &nusav1.TestWebhookRequest{Name: "hook"})
	if err != nil || out.GetStatusCode() != 418 || len(out.GetBody()) != webhook.MaxBody || !strings.HasPrefix(out.GetId(), "test-") || out.GetError() == "" {
		t.Errorf("%v, %v", out, err)
	}
	w.policy.AllowPrivate = nil
	out, err = w.api.Test(t.Context(), &nusav1.TestWebhookRequest{Name: "hook"})
	if err != nil || out.GetStatusCode() != 0 || !strings.Contains(out.GetError(), "not allowed") {
		t.Errorf("a private address: %v, %v", out, err)
	}
}

// TestGoneAfterMove: an endpoint that is gone says nothing about the endpoint that has replaced it.
func TestGoneAfterMove(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	asked := make(chan struct{}, 1)
	old := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-release
		rw.WriteHeader(http.StatusGone)
	}))
	t.Cleanup(old.Close)
	next := newEndpoint(t, always(http.StatusOK))
	w.set(to("hook", old.URL))
	n := w.log.add("job.submitted", "default/a", "default")
	<-asked
	w.set(to("hook", next.URL))
	close(release)
	next.await(t, "the new endpoint gets the event", func() bool { return next.accepted[n] == 1 })
	w.awaitStatus("hook", "it works", func(s *nusav1.WebhookStatus) bool { return s.GetState() == nusav1.WebhookState_WEBHOOK_STATE_OK })
	// An answer of the old endpoint that comes later still is dropped, too.
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer close(done)
		w.sender.disable(ctx, "hook", w.sender.of("hook").id, old.URL, "gone")
	}()
	select {
	case <-done:
	case <-time.After(patience):
		cancel()
		<-done
		t.Error("the server tries again and again to disable a webhook that has another endpoint")
	}
}
