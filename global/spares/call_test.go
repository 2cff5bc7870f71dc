package spares

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

var sample = provision{Type: "nusa.spare.provision", Key: "id-ask-1", Spare: "id", Namespace: "default", Pool: "bare", Count: 2, Deadline: time.Unix(1_000_000, 0).UTC()}

func TestMessages(t *testing.T) {
	secret := webhook.NewSecret()
	hook, err := messageOf(&nusav1.ProvisionerRecord{Secret: secret.Reveal(), Provisioner: &nusav1.Provisioner{
		Kind: &nusav1.Provisioner_Webhook{Webhook: &nusav1.WebhookProvisioner{Url: "https://lab.example/x"}}}}, sample)
	var body provision
	if err != nil || hook.URL != "https://lab.example/x" || len(hook.Secrets) != 1 || hook.ID != "id-ask-1" || json.Unmarshal(hook.Body, &body) != nil || body.Count != 2 {
		t.Errorf("webhook: %+v, %v", hook, err)
	}
	gitlab, err := messageOf(&nusav1.ProvisionerRecord{Secret: "glptt-7", Provisioner: &nusav1.Provisioner{
		Kind: &nusav1.Provisioner_Gitlab{Gitlab: &nusav1.GitlabProvisioner{Url: "https://git.example/x", Ref: "main"}}}}, sample)
	form, _ := url.ParseQuery(string(gitlab.Body))
	if err != nil || form.Get("token") != "glptt-7" || form.Get("ref") != "main" || form.Get("variables[NUSA_COUNT]") != "2" || form.Get("variables[NUSA_KEY]") != "id-ask-1" || len(gitlab.Secrets) > 0 {
		t.Errorf("gitlab: %v, %v", form, err)
	}
	awx, err := messageOf(&nusav1.ProvisionerRecord{Secret: "oauth", Provisioner: &nusav1.Provisioner{
		Kind: &nusav1.Provisioner_Awx{Awx: &nusav1.AwxProvisioner{Url: "https://awx.example/x"}}}}, sample)
	var launch struct {
		Extra map[string]string `json:"extra_vars"`
	}
	if err != nil || json.Unmarshal(awx.Body, &launch) != nil || launch.Extra["NUSA_POOL"] != "bare" || awx.Header["Authorization"] != "Bearer oauth" || awx.Header["Idempotency-Key"] != "id-ask-1" {
		t.Errorf("awx: %+v, %v", awx, err)
	}
	if _, err := messageOf(&nusav1.ProvisionerRecord{Provisioner: &nusav1.Provisioner{Name: "new"}}, sample); err == nil {
		t.Error("a kind of a later version is called")
	}
}

// TestAStoredSecretStays: a stored secret goes to no other address, and is used by no other kind.
func TestAStoredSecretStays(t *testing.T) {
	policy := &webhook.Policy{}
	awx := func(url string) *nusav1.Provisioner {
		return &nusav1.Provisioner{Name: "lab", Kind: &nusav1.Provisioner_Awx{Awx: &nusav1.AwxProvisioner{Url: url}}}
	}
	gitlab := &nusav1.Provisioner{Name: "lab", Kind: &nusav1.Provisioner_Gitlab{Gitlab: &nusav1.GitlabProvisioner{Url: "https://awx.example/x", Ref: "main"}}}
	program := &nusav1.Provisioner{Name: "lab", Kind: &nusav1.Provisioner_Command{Command: &nusav1.CommandProvisioner{Program: "add"}}}
	kept := &nusav1.ProvisionerRecord{Provisioner: awx("https://awx.example/x"), Secret: "oauth"}
	for _, c := range []struct {
		p      *nusav1.Provisioner
		given  string
		secret string
		ok     bool
	}{
		{awx("https://awx.example/x"), "", "oauth", true}, {awx("https://other.example/x"), "", "", false}, {gitlab, "", "", false},
		{awx("https://other.example/x"), "new", "new", true}, {gitlab, "new", "new", true}, {program, "", "", true},
	} {
		rec, err := checkProvisioner(&nusav1.SetProvisionerRequest{Provisioner: c.p, Secret: c.given}, kept, policy)
		if (err == nil) != c.ok || rec.GetSecret() != c.secret || err != nil && strings.Contains(err.Error(), "oauth") {
			t.Errorf("%v with %q: secret %q, %v", c.p, c.given, rec.GetSecret(), err)
		}
	}
}

// TestLargeRequests: a request is stored with each step, and given to programs in one variable.
func TestLargeRequests(t *testing.T) {
	for n, ok := range map[int]bool{30 << 10: true, 33 << 10: false} {
		_, _, err := checked(&nusav1.PrepareSpareRequest{Constraints: []string{strings.Repeat("x", n)}}, &webhook.Policy{})
		if (err == nil) != ok {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestResults(t *testing.T) {
	for status, final := range map[int]bool{200: false, 302: true, 400: true, 401: true, 404: true, 408: false, 409: false, 429: false, 500: false, 503: false, 0: false} {
		if got := resultOf(webhook.Response{Status: status, Err: "no"}); got.Final != final {
			t.Errorf("status %d: final %v", status, got.Final)
		}
	}
}

// TestPrograms: a program gets the request and nothing of this process. One that hangs is ended with its
// children.
func TestPrograms(t *testing.T) {
	t.Setenv("NUSA_TOKEN", "hidden")
	dir := t.TempDir()
	program := func(text string) string {
		path := filepath.Join(dir, "program")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	out := filepath.Join(dir, "out")
	if got := runProgram(t.Context(), program("env > "+out+"; cat >> "+out), "add", sample, 10*time.Second); got.Err != "" {
		t.Fatal(got)
	}
	text, err := os.ReadFile(out)
	if err != nil || !strings.Contains(string(text), "NUSA_KEY=id-ask-1\n") || !strings.Contains(string(text), `"count":2`) || strings.Contains(string(text), "hidden") {
		t.Errorf("%v\n%s", err, text)
	}
	if got := runProgram(t.Context(), program("echo one >&2; echo no hosts left >&2; exit 3"), "add", sample, 10*time.Second); got.Final || !strings.Contains(got.Err, "exit status 3: no hosts left") {
		t.Errorf("%+v", got)
	}
	began := time.Now()
	if got := runProgram(t.Context(), program("sleep 60 & sleep 60"), "add", sample, 200*time.Millisecond); got.Final || !strings.Contains(got.Err, "did not end within 200ms") || time.Since(began) > 10*time.Second {
		t.Errorf("%+v after %s", got, time.Since(began))
	}
	if got := runProgram(t.Context(), "", "other", sample, time.Second); !got.Final || !strings.Contains(got.Err, "--spare-command other=PATH") {
		t.Errorf("%+v", got)
	}
	if CheckPrograms(map[string]string{"add": "bin/add"}) == nil || CheckPrograms(map[string]string{"Add!": "/bin/add"}) == nil || CheckPrograms(map[string]string{"add": "/bin/add"}) != nil {
		t.Error("programs are not checked")
	}
}
