//go:build integration

package local_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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
// refuses some of them. The next server sends the rest. Each event arrives, with one webhook-id.
func TestWebhooksSurviveAKill(t *testing.T) {
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
	b := &burst{p: p, half: make(chan struct{}), acks: make([]*nusav1.SubmitResponse, jobs), regions: map[string]map[string]bool{}}
	submitted := make(chan error, 1)
	go func() { submitted <- b.submit(t.Context()) }()
	<-b.half
	f.eventually("some events arrive", func(context.Context) error {
		if n := l.count(); n < jobs/10 {
			return fmt.Errorf("%d events", n)
		}
		return nil
	})
	before := l.count()
	p.servers[0].Kill()
	if err := <-submitted; err != nil {
		t.Fatal(err)
	}
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
