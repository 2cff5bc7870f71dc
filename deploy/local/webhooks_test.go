//go:build integration

package local_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/cloudevent"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// listener is an endpoint that refuses each seventh event the first time.
type listener struct {
	mu     sync.Mutex
	secret webhook.Secret
	// accepted counts the requests by subject. ids are the values of webhook-id by subject.
	accepted map[string]int
	ids      map[string]map[string]bool
	refused  map[string]bool
	forged   int
}

func (l *listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var e cloudevent.Envelope
	l.mu.Lock()
	defer l.mu.Unlock()
	id := r.Header.Get("webhook-id")
	seconds, _ := strconv.ParseInt(r.Header.Get("webhook-timestamp"), 10, 64)
	want := webhook.Sign([]webhook.Secret{l.secret}, id, time.Unix(seconds, 0), body)
	if json.Unmarshal(body, &e) != nil || e.ID != id || !slices.Contains(strings.Fields(r.Header.Get("webhook-signature")), want) {
		l.forged++
		return
	}
	if !strings.Contains(e.Subject, "burst-") {
		return // a workflow, or the job of a step
	}
	if e.Data.Number%7 == 0 && !l.refused[id] {
		l.refused[id] = true
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	l.accepted[e.Subject]++
	if l.ids[e.Subject] == nil {
		l.ids[e.Subject] = map[string]bool{}
	}
	l.ids[e.Subject][id] = true
}

// count returns how many different subjects were accepted.
func (l *listener) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.accepted)
}

// TestWebhooksSurviveAKill: the active global server is killed while it sends events to an endpoint that
// refuses some of them. The next server sends the rest. Each event arrives, with one webhook-id. Meanwhile it begins
// the steps of workflows. The next server goes on with them: no step is lost, and none runs twice.
func TestWebhooksSurviveAKill(t *testing.T) {
	t.Parallel()
	const jobs = 400
	p := startPair(t)
	f := &federation{t: t}
	l := &listener{secret: webhook.NewSecret(), accepted: map[string]int{}, ids: map[string]map[string]bool{}, refused: map[string]bool{}}
	srv := httptest.NewServer(l)
	t.Cleanup(srv.Close)
	_, err := nusav1.NewWebhooksClient(p.conns[1]).Set(t.Context(), &nusav1.SetWebhookRequest{
		Webhook: &nusav1.Webhook{Name: "hook", Url: srv.URL, Types: []string{"job.submitted"}}, Secrets: []string{l.secret.Reveal()},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := newBurst(t, p.conns, jobs, burstStreams, burstCallers)
	w, begun := startFlows(p)
	submitted := make(chan error, 1)
	go func() { submitted <- b.submit(t.Context()) }()
	<-b.half
	<-w.half
	f.eventually("some steps have begun", func(context.Context) error {
		if n := w.started(); n < flowRuns {
			return fmt.Errorf("%d steps", n)
		}
		return nil
	})
	f.eventually("some events arrive", func(context.Context) error {
		if n := l.count(); n < jobs/10 {
			return fmt.Errorf("%d events", n)
		}
		return nil
	})
	before, stepsBefore := l.count(), w.started()
	p.servers[0].Kill()
	if err := <-submitted; err != nil {
		t.Fatal(err)
	}
	if err := begun(); err != nil {
		t.Fatal(err)
	}
	f.eventually("all runs of workflows have succeeded", w.succeeded)
	w.check(stepsBefore)
	f.eventually("all events arrive", func(context.Context) error {
		if n := l.count(); n != jobs {
			return fmt.Errorf("%d of %d events", n, jobs)
		}
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	repeated := 0
	for subject, ids := range l.ids {
		if len(ids) != 1 {
			t.Errorf("%s was sent with the ids %v", subject, ids)
		}
		repeated += l.accepted[subject] - 1
	}
	t.Logf("%d events before the kill, %d refused once, %d of %d sent again", before, len(l.refused), repeated, jobs)
	if l.forged > 0 || len(l.refused) == 0 {
		t.Errorf("%d requests without a valid signature, %d refused", l.forged, len(l.refused))
	}
}

// storeFiles returns the files of the store, which has the secrets of webhooks.
func storeFiles(c *canaries) (out []string) {
	c.Helper()
	for _, pattern := range []string{"member/snap/db", "member/wal/*.wal"} {
		files, err := filepath.Glob(filepath.Join(c.dir, "g1", "etcd", pattern))
		if err != nil || len(files) == 0 {
			c.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, file := range files {
			rel, err := filepath.Rel(c.dir, file)
			if err != nil {
				c.Fatal(err)
			}
			out = append(out, rel)
		}
	}
	return out
}

// addWebhook adds the secret of a webhook, which only the store may have.
func (c *canaries) addWebhook(name, secret string) {
	c.Helper()
	text := strings.TrimPrefix(secret, "whsec_")
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		c.Fatal(err)
	}
	c.list = append(c.list, canary{name, [][]byte{key, []byte(hex.EncodeToString(key)), []byte(strings.TrimRight(text, "="))}, storeFiles(c)})
}

// webhooks gives a secret to a webhook, and runs the commands about webhooks. The store has the secret,
// and so has the file of a secret that the server made.
func (c *canaries) webhooks() {
	c.Helper()
	server := []string{"--addr", c.addr(0), "--identity", filepath.Join(c.dir, "g1", "operator")}
	out := c.TempDir()
	given, file := webhook.NewSecret().Reveal(), filepath.Join(out, "given")
	if err := os.WriteFile(file, []byte(given+"\n"), 0o600); err != nil {
		c.Fatal(err)
	}
	c.addWebhook("the secret of a webhook", given)
	made := filepath.Join(out, "made")
	for _, args := range [][]string{
		{"webhook", "create", "canary", "--url", "https://hooks.invalid/hook", "--secret-file", file}, {"webhook", "test", "canary"},
		{"webhook", "rotate", "canary", "--secret-out", made}, {"webhook", "list", "-o", "json"}, {"webhook", "show", "canary", "-o", "json"},
		{"webhook", "log", "canary", "-o", "json"}, {"webhook", "disable", "canary"}, {"webhook", "enable", "canary"}, {"audit", "list", "-o", "json"},
	} {
		c.run(args[1] != "test", nil, append(args, server...)...)
	}
	text, err := os.ReadFile(made)
	if err != nil {
		c.Fatal(err)
	}
	c.addWebhook("a secret of a webhook that the server made", strings.TrimSpace(string(text)))
}

// buses gives passwords to a bus and an intake, and runs the commands about them. Only the store has the
// passwords.
func (c *canaries) buses() {
	c.Helper()
	server := []string{"--addr", c.addr(0), "--identity", filepath.Join(c.dir, "g1", "operator")}
	const password = "canary-of-a-broker-7d1f"
	file := filepath.Join(c.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		c.Fatal(err)
	}
	for _, args := range [][]string{
		{"bus", "create", "canary", "--url", "tls://bus.invalid", "--user", "nusa", "--password-file", file}, {"bus", "test", "canary"},
		{"bus", "list", "-o", "json"}, {"bus", "show", "canary", "-o", "json"}, {"bus", "disable", "canary"}, {"bus", "enable", "canary"},
		{"intake", "create", "canary", "--url", "amqps://bus.invalid", "--user", "nusa", "--password-file", file}, {"intake", "list", "-o", "json"},
		{"intake", "show", "canary", "-o", "json"}, {"audit", "list", "-o", "json"},
	} {
		c.run(args[1] != "test", nil, append(args, server...)...)
	}
	c.list = append(c.list, canary{"the password of a broker", [][]byte{[]byte(password)}, storeFiles(c)})
}
