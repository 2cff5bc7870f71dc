package webhook

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestVectors has the test vectors of the specification's reference libraries.
func TestVectors(t *testing.T) {
	s, err := ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	id, at, body := "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`)
	const want = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	if got := Sign([]Secret{s}, id, at, body); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	other := NewSecret()
	if got := Sign([]Secret{other, s}, id, at, body); !strings.HasSuffix(got, " "+want) || strings.Count(got, "v1,") != 2 {
		t.Errorf("two secrets: %s", got)
	}
}

func TestSecrets(t *testing.T) {
	made := NewSecret()
	if back, err := ParseSecret(made.Reveal() + "\n"); err != nil || string(back.key) != string(made.key) {
		t.Errorf("%v", err)
	}
	for _, text := range []string{fmt.Sprint(made), fmt.Sprintf("%+v %#v %s", made, made, []Secret{made})} {
		if strings.Contains(text, made.Reveal()[len(secretPrefix):]) || strings.Contains(text, fmt.Sprint(made.key)) {
			t.Errorf("a secret shows itself: %s", text)
		}
	}
	for _, bad := range []string{"", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa", "whsec_!!!KQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_" + strings.Repeat("A", 88)} {
		if _, err := ParseSecret(bad); !errors.Is(err, ErrSecret) || len(bad) > 10 && strings.Contains(err.Error(), bad[6:]) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzParseSecret(f *testing.F) {
	f.Add("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	f.Add("whsec_=")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSecret(text)
		if err != nil {
			return
		}
		if back, err := ParseSecret(s.Reveal()); err != nil || string(back.key) != string(s.key) {
			t.Fatalf("%q: %v", text, err)
		}
	})
}

func TestAddresses(t *testing.T) {
	p := &Policy{AllowPrivate: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/32")}}
	for text, allowed := range map[string]bool{
		"1.1.1.1": true, "8.8.8.8": true, "2606:4700:4700::1111": true, "::ffff:8.8.8.8": true, "64:ff9b::808:808": true,
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "64:ff9b::a01:203": true, "fd00:1::5": true,
		"127.0.0.1": false, "127.8.9.1": false, "0.0.0.0": false, "0.1.2.3": false, "10.2.0.1": false, "172.31.255.255": false, "172.32.0.1": true,
		"192.168.1.1": false, "169.254.169.254": false, "100.100.100.200": false, "168.63.129.16": false, "192.0.0.192": false,
		"224.0.0.1": false, "255.255.255.255": false, "198.18.0.1": false,
		"::1": false, "::": false, "::7f00:1": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false,
		"64:ff9b::7f00:1": false, "64:ff9b::a9fe:a9fe": false, "64:ff9b:1::1": false, "2002:7f00:1::": false, "2002:a9fe:a9fe::1": false,
		"2001:0:1::1": false, "fe80::1": false, "fe80::1%eth0": false, "fec0::1": false, "fd00:ec2::254": false, "ff02::1": false,
	} {
		if err := p.Check(netip.MustParseAddr(text)); (err == nil) != allowed || err != nil && !errors.Is(err, ErrAddress) {
			t.Errorf("%s: %v, allowed: %t", text, err, allowed)
		}
	}
}

func TestURLs(t *testing.T) {
	p := &Policy{}
	for raw, want := range map[string]string{
		"https://example.com/hook?a=b":             "",
		"https://example.com:8443":                 "",
		"":                                         "give the URL",
		"http://example.com/":                      "http is not encrypted",
		"ftp://example.com/":                       "the scheme is",
		"example.com/hook":                         "the scheme is",
		"https:///hook":                            "the host is missing",
		"https:example.com":                        "the host is missing",
		"https://user:geheim@example.com/":         "a user or a password",
		"https://example.com/#x":                   "a fragment",
		"https://127.0.0.1/":                       "private or reserved",
		"https://[::ffff:a9fe:a9fe]/meta":          "private or reserved",
		"https://exa mple.com/":                    "not a URL",
		"https://x/" + strings.Repeat("a", MaxURL): "the limit is",
	} {
		err := p.CheckURL(raw)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %s", raw, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "geheim") {
			t.Errorf("the password is in the error: %v", err)
		}
	}
	if err := (&Policy{AllowHTTP: true}).CheckURL("http://example.com"); err != nil {
		t.Error(err)
	}
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// send makes a request to a server with a policy for it.
func send(t *testing.T, p *Policy, url string, timeout time.Duration) Response {
	t.Helper()
	c := NewClient(p, 2)
	defer c.Close()
	return c.Send(t.Context(), Message{
		URL: url, ID: "l-1", ContentType: "application/json", Body: []byte(`{}`), Secrets: []Secret{NewSecret()}, At: time.Now(),
	}, timeout)
}

func TestResponses(t *testing.T) {
	stop := make(chan struct{})
	reached := 0
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusAccepted) })
	mux.HandleFunc("/elsewhere", func(w http.ResponseWriter, r *http.Request) { reached++ })
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/busy", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "120")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	mux.HandleFunc("/huge", func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<16)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X", strings.Repeat("x", maxHeaders+1000))
	})
	mux.HandleFunc("/dead", func(w http.ResponseWriter, r *http.Request) { <-stop })
	mux.HandleFunc("/drip", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		w.(http.Flusher).Flush()
		<-stop
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	defer close(stop)
	p := &Policy{AllowPrivate: loopback, AllowHTTP: true}
	for path, want := range map[string]Response{
		"/ok":       {Status: 202},
		"/redirect": {Status: 307, Err: "redirects are not followed"},
		"/busy":     {Status: 429, RetryAfter: 2 * time.Minute, Err: "status 429 Too Many Requests"},
		"/huge":     {Status: 200},
		"/headers":  {Err: "exceeded"},
	} {
		got := send(t, p, srv.URL+path, 10*time.Second)
		if got.Status != want.Status || got.RetryAfter != want.RetryAfter || (got.Err == "") != (want.Err == "") || !strings.Contains(got.Err, want.Err) || len(got.Body) > MaxBody {
			t.Errorf("%s: %+v, want %+v", path, got, want)
		}
		if strings.Contains(got.Err, srv.URL) {
			t.Errorf("%s: the URL is in the error: %s", path, got.Err)
		}
	}
	if reached > 0 {
		t.Error("a redirect was followed")
	}
	if got := send(t, p, srv.URL+"/dead", 50*time.Millisecond); got.Status != 0 || got.Err != "no response within 50ms" {
		t.Errorf("a dead endpoint: %+v", got)
	}
	if got := send(t, p, srv.URL+"/drip", 2*time.Second); got.Status != 500 || got.Took > time.Minute {
		t.Errorf("a dripping endpoint: %+v", got)
	}
}

// TestPrivateAddressesAreRefusedAtConnect: the address counts, not the name. "localhost" passes the
// check of the URL and is refused when it was resolved.
func TestPrivateAddressesAreRefusedAtConnect(t *testing.T) {
	reached := false
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer srv.Close()
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
	p := &Policy{AllowHTTP: true}
	url := "http://localhost:" + port
	if err := p.CheckURL(url); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{url, srv.URL, "http://[::ffff:127.0.0.1]:" + port} {
		if got := send(t, p, url, 5*time.Second); got.Status != 0 || !strings.Contains(got.Err, "private or reserved") && !strings.Contains(got.Err, "not allowed") || reached {
			t.Errorf("%s: %+v", url, got)
		}
	}
}

// TestNoProxy: the environment's proxy would make the connection in place of the server, to any address.
func TestNoProxy(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	defer srv.Close()
	if tr := NewClient(&Policy{}, 1).http.Transport.(*http.Transport); tr.Proxy != nil {
		t.Error("the transport asks for a proxy")
	}
	if got := send(t, &Policy{AllowPrivate: loopback, AllowHTTP: true}, srv.URL, 5*time.Second); got.Status != 200 {
		t.Errorf("%+v", got)
	}
}

func TestUnknownAuthority(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	defer srv.Close()
	srv.Config.ErrorLog = nil
	if got := send(t, &Policy{AllowPrivate: loopback}, srv.URL, 5*time.Second); got.Status != 0 || !strings.Contains(got.Err, "certificate") {
		t.Errorf("%+v", got)
	}
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	if got := send(t, &Policy{AllowPrivate: loopback, Roots: roots}, srv.URL, 5*time.Second); got.Status != 200 {
		t.Errorf("%+v", got)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "120": 2 * time.Minute, " 5 ": 5 * time.Second, "-5": 0, "soon": 0, "99999999999999999": 365 * 24 * time.Hour, "999999999999999999999999": 0,
		now.Add(time.Hour).Format(http.TimeFormat): time.Hour, now.Add(-time.Hour).Format(http.TimeFormat): 0,
	} {
		if got := RetryAfter(value, now); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	f.Add("120")
	f.Add("Fri, 02 Jan 2026 03:04:05 GMT")
	f.Fuzz(func(t *testing.T, value string) {
		if got := RetryAfter(value, time.Unix(1767323045, 0)); got < 0 {
			t.Fatalf("%q: %s", value, got)
		}
	})
}
