package broker

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/internal/webhook"
)

func TestBadTargets(t *testing.T) {
	strict := &webhook.Policy{}
	good := Settings{URLs: []string{"amqps://rabbit.example.com/prod"}, User: "nusa", Password: NewSecret("pa55")}
	for want, change := range map[string]func(*Settings){
		"urls: 0 addresses":                      func(s *Settings) { s.URLs = nil },
		"urls: 9 addresses":                      func(s *Settings) { s.URLs = make([]string, 9) },
		"urls: a user or a password":             func(s *Settings) { s.URLs = []string{"amqps://u:pa55@rabbit.example.com"} },
		"urls: the scheme is \"https\"":          func(s *Settings) { s.URLs = []string{"https://example.com"} },
		"urls: the scheme is \"\"":               func(s *Settings) { s.URLs = []string{"example.com"} },
		"urls: amqp:// is not encrypted":         func(s *Settings) { s.URLs = []string{"amqp://rabbit.example.com"} },
		"urls: nats:// is not encrypted":         func(s *Settings) { s.URLs = []string{"nats://nats.example.com"} },
		"urls: the host of an address":           func(s *Settings) { s.URLs = []string{"tls:nats.example.com"} },
		"urls: an address has no parameters":     func(s *Settings) { s.URLs = []string{"amqps://r.example.com/?certfile=/etc/passwd"} },
		"urls: an address of NATS has no path":   func(s *Settings) { s.URLs = []string{"tls://n.example.com/x"} },
		"urls: an address is not a URL":          func(s *Settings) { s.URLs = []string{"tls://n.example.com:x%zz"} },
		"urls: all addresses must be of one":     func(s *Settings) { s.URLs = []string{"amqps://r.example.com", "tls://n.example.com"} },
		"urls: requests to this address are not": func(s *Settings) { s.URLs = []string{"amqps://10.1.2.3"} },
		"urls: an address is 3":                  func(s *Settings) { s.URLs = []string{"tls://" + strings.Repeat("n", 3000)} },
		"user: RabbitMQ needs a user":            func(s *Settings) { s.User = "" },
		"user: a name has":                       func(s *Settings) { s.User = "a\nb" },
		"password: ":                             func(s *Settings) { s.Password = NewSecret(strings.Repeat("p", maxPassword+1)) },
		"ca: ":                                   func(s *Settings) { s.CA = "nonsense" },
		"certificate: a certificate and its":     func(s *Settings) { s.Certificate = "a" },
		"certificate: certificate and key":       func(s *Settings) { s.Certificate, s.Key = "a", NewSecret("pa55") },
	} {
		s := good
		change(&s)
		_, problems := NewTarget(s, strict)
		if len(problems) != 1 || !strings.HasPrefix(problems[0].Field+": "+problems[0].Message, want) {
			t.Errorf("%s: %v", want, problems)
		}
		if strings.Contains(fmt.Sprintf("%v %+v %#v", problems, s, s), "pa55") && !strings.Contains(want, "a user or a password") {
			t.Errorf("%s: a secret is printed", want)
		}
	}
	for _, s := range []Settings{good, {URLs: []string{"tls://nats.example.com:4222", "tls://nats2.example.com"}}} {
		if _, problems := NewTarget(s, strict); len(problems) > 0 {
			t.Errorf("%v: %v", s.URLs, problems)
		}
	}
}

// TestAddressesAreCheckedWhenDialed: a name that leads to a private address passes the first check, and
// no connection is opened.
func TestAddressesAreCheckedWhenDialed(t *testing.T) {
	for _, url := range []string{"nats://localhost:1", "amqp://localhost:1"} {
		target, problems := NewTarget(Settings{URLs: []string{url}, User: "u", Password: NewSecret("pa55")}, &webhook.Policy{AllowHTTP: true})
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		_, err := NewPublisher(t.Context(), target, Sink{Subject: "s", Exchange: "e"})
		if err == nil || !strings.Contains(err.Error(), "not allowed") || strings.Contains(err.Error(), "pa55") {
			t.Errorf("%s: %v", url, err)
		}
		target.policy.AllowPrivate = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
		_, err = NewPublisher(t.Context(), target, Sink{Subject: "s", Exchange: "e"})
		if err == nil || errors.Is(err, webhook.ErrAddress) || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s with its network allowed: %v", url, err)
		}
	}
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{"nusa.events": true, "a": true, "a..b": false, ".a": false, "a.": false, "a b": false, "a.*": false, ">": false, "$JS.API": false, strings.Repeat("a", 129): false, "": false} {
		if err := CheckSubject(name); (err == nil) != ok {
			t.Errorf("subject %q: %v", name, err)
		}
	}
	for name, ok := range map[string]bool{"nusa.events": true, "a b": true, "amq.topic": false, strings.Repeat("a", 129): false, "a\n": false} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("exchange %q: %v", name, err)
		}
	}
}
