package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// receive verifies a request, and returns its body.
func receive(r *http.Request, secret string) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	id, at := r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return nil, errors.New("too old or too new")
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + at + "." + string(body)))
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for _, got := range strings.Fields(r.Header.Get("webhook-signature")) {
		if hmac.Equal([]byte(got), []byte(want)) {
			return body, nil
		}
	}
	return nil, errors.New("no valid signature")
}

// TestReceiverOfThePage: the receiver in docs/webhooks.md is the one of this file. It accepts what the
// client sends, and nothing else.
func TestReceiverOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("receiver_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "```go\n")
	code, _, _ := strings.Cut(rest, "```")
	if !ok || !strings.Contains(string(own), code) {
		t.Error("the receiver in docs/webhooks.md is not the one of this file")
	}
	secret, other := NewSecret(), NewSecret()
	for name, c := range map[string]struct {
		secrets []Secret
		at      time.Time
		ok      bool
	}{
		"the secret":        {[]Secret{secret}, time.Now(), true},
		"during a rotation": {[]Secret{other, secret}, time.Now(), true},
		"another secret":    {[]Secret{other}, time.Now(), false},
		"an old request":    {[]Secret{secret}, time.Now().Add(-time.Hour), false},
	} {
		var got []byte
		var failed error
		srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got, failed = receive(r, secret.Reveal()) }))
		client := NewClient(&Policy{AllowPrivate: loopback, AllowHTTP: true}, 1)
		resp := client.Send(t.Context(), Message{URL: srv.URL, ID: "fed-1", Body: []byte(`{"a":1}`), Secrets: c.secrets, At: c.at}, 5*time.Second)
		client.Close()
		srv.Close()
		if resp.Status != 200 || (failed == nil) != c.ok || c.ok && string(got) != `{"a":1}` {
			t.Errorf("%s: %+v, %v, %q", name, resp, failed, got)
		}
	}
}
