package client

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// hooksServer has one webhook, ops, whose endpoint fails.
type hooksServer struct {
	nusav1.UnimplementedWebhooksServer
	set *nusav1.SetWebhookRequest
}

const madeSecret = "whsec_MfKQ9r8GKYqTwjUPD8ILPZIo2LaLaSw1"

var opsHook = &nusav1.Webhook{
	Name: "ops", Url: "https://ops.example.com", Types: []string{"region.*"}, Secrets: 2,
	Status: &nusav1.WebhookStatus{State: nusav1.WebhookState_WEBHOOK_STATE_FAILING, Cursor: 7, Unread: 3, Pending: 2, Delivered: 9, LastError: "connection refused"},
}

func (h *hooksServer) Set(_ context.Context, req *nusav1.SetWebhookRequest) (*nusav1.SetWebhookResponse, error) {
	h.set = req
	if req.GetWebhook().GetUrl() == "" {
		return nil, status.Error(codes.InvalidArgument, "webhook.url: is missing")
	}
	out := &nusav1.SetWebhookResponse{Webhook: req.GetWebhook()}
	if len(req.GetSecrets()) == 0 {
		out.Secret = madeSecret
	}
	return out, nil
}

func (*hooksServer) List(context.Context, *nusav1.ListWebhooksRequest) (*nusav1.ListWebhooksResponse, error) {
	return &nusav1.ListWebhooksResponse{Webhooks: []*nusav1.Webhook{opsHook}}, nil
}

func (*hooksServer) Get(context.Context, *nusav1.GetWebhookRequest) (*nusav1.Webhook, error) {
	return opsHook, nil
}

func (*hooksServer) Test(context.Context, *nusav1.TestWebhookRequest) (*nusav1.TestWebhookResponse, error) {
	return &nusav1.TestWebhookResponse{StatusCode: 500, Error: "status 500 is not 2xx", Body: "oh\nno"}, nil
}

func (*hooksServer) Log(context.Context, *nusav1.WebhookLogRequest) (*nusav1.WebhookLogResponse, error) {
	return &nusav1.WebhookLogResponse{Deliveries: []*nusav1.WebhookDelivery{{
		Id: "f-8", Number: 8, Type: "region.lost", Subject: "oslo", State: "pending", Attempts: []*nusav1.WebhookAttempt{{Error: "connection refused"}},
	}}}, nil
}

func (*hooksServer) Replay(_ context.Context, req *nusav1.ReplayWebhookRequest) (*nusav1.ReplayWebhookResponse, error) {
	return &nusav1.ReplayWebhookResponse{Events: req.GetFrom()}, nil
}

func (*hooksServer) Rotate(context.Context, *nusav1.RotateWebhookRequest) (*nusav1.RotateWebhookResponse, error) {
	return &nusav1.RotateWebhookResponse{Webhook: opsHook, Secret: madeSecret}, nil
}

func (*hooksServer) Disable(context.Context, *nusav1.DisableWebhookRequest) (*nusav1.Webhook, error) {
	return opsHook, nil
}

// TestWebhook: the commands show what the server returns. A secret is printed only if there is no file
// for it.
func TestWebhook(t *testing.T) {
	f := newFake(t)
	dir := t.TempDir()
	file, own := filepath.Join(dir, "secret"), filepath.Join(dir, "own")
	if err := os.WriteFile(own, []byte("whsec_a\nwhsec_b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"create", "ops", "--url", "https://x", "--types", "job.*"}, madeSecret, 0},
		{[]string{"create", "ops"}, "url: is missing", 1},
		{[]string{"create", "ops", "--url", "https://x", "--secret-out", file}, "webhook ops is stored", 0},
		{[]string{"create", "ops", "--url", "https://x", "--secret-out", file}, "name a new file", 1},
		{[]string{"create", "ops", "--url", "https://x", "--secret-out", filepath.Join(dir, "none", "x")}, "name a new file", 1},
		{[]string{"create", "ops", "--url", "https://x", "--secret-file", own, "--replace"}, "webhook ops is stored", 0},
		{[]string{"list"}, "failing", 0},
		{[]string{"list"}, "ops: connection refused", 0},
		{[]string{"list", "-o", "json"}, `"delivered": "9"`, 0},
		{[]string{"show", "ops"}, "region.*", 0},
		{[]string{"test", "ops"}, "status 500", 1},
		{[]string{"log", "ops"}, "no response: connection refused", 0},
		{[]string{"replay", "ops", "--from", "5"}, "5 events", 0},
		{[]string{"replay", "ops"}, "give either --id", 1},
		{[]string{"rotate", "ops"}, madeSecret, 0},
		{[]string{"disable", "ops"}, "webhook ops is disabled", 0},
	} {
		out, errOut, code := f.run(t.Context(), "", append(append([]string{"webhook"}, c.args...), "--addr="+f.addr)...)
		if code != c.code || !strings.Contains(out+errOut, c.want) {
			t.Errorf("nusa webhook %s: exit code %d, want %d with %q:\n%s%s", strings.Join(c.args, " "), code, c.code, c.want, out, errOut)
		}
		for line := range strings.Lines(out) {
			if len(strings.TrimRight(line, "\n")) > 80 && !strings.Contains(line, "{") {
				t.Errorf("nusa webhook %s: a line of %d columns: %s", strings.Join(c.args, " "), len(line), line)
			}
		}
		if strings.Contains(strings.Join(c.args, " "), file) && strings.Contains(out+errOut, madeSecret) {
			t.Errorf("nusa webhook %s prints the secret of a file", strings.Join(c.args, " "))
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != madeSecret+"\n" {
		t.Errorf("the file has %q, %v", text, err)
	}
	if got := f.hooks.set.GetSecrets(); len(got) != 2 || f.hooks.set.GetRevision() != 0 {
		t.Errorf("the request has the secrets %v and the revision %d", got, f.hooks.set.GetRevision())
	}
}
