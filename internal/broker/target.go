package broker

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/webhook"
)

// Bounds of a target.
const (
	maxURLs     = 8
	maxUser     = 256
	maxPassword = 16 << 10
	maxPEM      = 64 << 10
)

// Kind is a kind of broker.
type Kind int

const (
	// NATS is NATS with JetStream.
	NATS Kind = iota + 1
	// RabbitMQ is any broker with AMQP 0-9-1 and publisher confirms.
	RabbitMQ
)

// schemes are the known schemes of addresses. plain: without TLS.
var schemes = map[string]struct {
	kind  Kind
	plain bool
}{
	"tls": {NATS, false}, "nats": {NATS, true}, "amqps": {RabbitMQ, false}, "amqp": {RabbitMQ, true},
}

// Secret is a text that does not show itself when it is printed.
type Secret struct{ text string }

// NewSecret returns a secret. An empty text is none.
func NewSecret(text string) Secret { return Secret{text} }

// String implements fmt.Stringer.
func (s Secret) String() string { return "(hidden)" }

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return s.String() }

// Settings are the parts of a Target, as an operator gives them.
type Settings struct {
	// URLs are the addresses of the servers: tls:// or nats://, or amqps:// or amqp://.
	URLs []string
	User string
	// Password is that of the user, a token of NATS, or the text of a NATS credentials file.
	Password Secret
	// CA, Certificate and Key are in PEM. All may be empty.
	CA, Certificate string
	Key             Secret
}

// Problem is a fault in the settings. Field is the name of the field: urls, user, ca, certificate,
// password or key.
type Problem struct{ Field, Message string }

// Target is where a broker is, and how a client is known to it.
type Target struct {
	Kind     Kind
	urls     []*url.URL
	user     string
	password string
	tls      *tls.Config
	policy   *webhook.Policy
}

// NewTarget checks settings. It returns all faults that it finds. It resolves no name.
func NewTarget(s Settings, policy *webhook.Policy) (*Target, []Problem) {
	t := &Target{user: s.User, password: s.Password.text, policy: policy, tls: &tls.Config{RootCAs: policy.Roots, MinVersion: tls.VersionTLS12}}
	var problems []Problem
	wrong := func(field string, err error) { problems = append(problems, Problem{field, err.Error()}) }
	if n := len(s.URLs); n == 0 || n > maxURLs {
		wrong("urls", fmt.Errorf("%d addresses: give 1 to %d, for example tls://nats.example.com:4222 or amqps://rabbit.example.com:5671", n, maxURLs))
	} else if err := t.setURLs(s.URLs); err != nil {
		wrong("urls", err)
	}
	if len(s.User) > maxUser || strings.ContainsAny(s.User, "\x00\r\n") {
		wrong("user", fmt.Errorf("a name has at most %d bytes on one line", maxUser))
	}
	if len(t.password) > maxPassword {
		wrong("password", fmt.Errorf("%d bytes long, the limit is %d", len(t.password), maxPassword))
	}
	if t.Kind == RabbitMQ && s.User == "" && s.Certificate == "" {
		wrong("user", errors.New("RabbitMQ needs a user with a password, or a certificate"))
	}
	if s.CA != "" {
		t.tls.RootCAs = x509.NewCertPool()
		if len(s.CA) > maxPEM || !t.tls.RootCAs.AppendCertsFromPEM([]byte(s.CA)) {
			wrong("ca", fmt.Errorf("has no certificate in PEM, or more than %d bytes", maxPEM))
		}
	}
	switch pair, err := tls.X509KeyPair([]byte(s.Certificate), []byte(s.Key.text)); {
	case s.Certificate == "" && s.Key.text == "":
	case s.Certificate == "" || s.Key.text == "":
		wrong("certificate", errors.New("a certificate and its private key come together"))
	case len(s.Certificate) > maxPEM || len(s.Key.text) > maxPEM:
		wrong("certificate", fmt.Errorf("more than %d bytes", maxPEM))
	case err != nil:
		wrong("certificate", errors.New("certificate and key are not in PEM, or do not belong together"))
	default:
		t.tls.Certificates = []tls.Certificate{pair}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return t, nil
}

func (t *Target) setURLs(all []string) error {
	for _, raw := range all {
		u, kind, err := checkURL(raw, t.policy)
		switch {
		case err != nil:
			return err
		case t.Kind != 0 && kind != t.Kind:
			return errors.New("all addresses must be of one broker: NATS or RabbitMQ")
		}
		t.Kind, t.urls = kind, append(t.urls, u)
	}
	return nil
}

// checkURL reads one address.
func checkURL(raw string, policy *webhook.Policy) (*url.URL, Kind, error) {
	if len(raw) > webhook.MaxURL {
		return nil, 0, fmt.Errorf("an address is %d bytes long, the limit is %d", len(raw), webhook.MaxURL)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, 0, errors.New("an address is not a URL: write tls://HOST:PORT or amqps://HOST:PORT/VHOST")
	}
	scheme, known := schemes[u.Scheme]
	switch {
	case u.User != nil:
		return nil, 0, errors.New("a user or a password in an address is shown to everyone who may read it: give the user apart, and the password as a secret")
	case !known:
		return nil, 0, fmt.Errorf("the scheme is %q: use tls:// for NATS, or amqps:// for RabbitMQ", u.Scheme)
	case scheme.plain && !policy.AllowHTTP:
		return nil, 0, fmt.Errorf("%s:// is not encrypted: use TLS, or start the global servers with --webhook-allow-http", u.Scheme)
	case u.Opaque != "" || u.Hostname() == "":
		return nil, 0, errors.New("the host of an address is missing: write tls://HOST:PORT or amqps://HOST:PORT/VHOST")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, 0, errors.New("an address has no parameters after ? or #")
	case scheme.kind == NATS && strings.Trim(u.Path, "/") != "":
		return nil, 0, errors.New("an address of NATS has no path")
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		if err := policy.Check(addr); err != nil {
			return nil, 0, err
		}
	}
	return u, scheme.kind, nil
}

// tlsOf returns the settings of TLS for an address.
func (t *Target) tlsOf(u *url.URL) *tls.Config {
	out := t.tls.Clone()
	out.ServerName = u.Hostname()
	return out
}
