package webhook

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// MaxURL is the longest URL, in bytes.
const MaxURL = 2048

// ErrAddress is wrapped by the error of a request to an address that the policy refuses.
var ErrAddress = errors.New("requests to this address are not allowed")

// Policy says which endpoints requests may go to, and which brokers connections. The zero Policy allows https to public addresses.
type Policy struct {
	// AllowPrivate are networks that are allowed although they are private.
	AllowPrivate []netip.Prefix
	// AllowHTTP allows requests without TLS.
	AllowHTTP bool
	// Roots are the authorities that may sign the certificate of an endpoint. Nil: those of the host.
	Roots *x509.CertPool
	// Dial opens connections in place of the host's network, for simulations, in which all hosts are
	// addresses.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
}

// refused are the networks that no request goes to. A private network, the host itself, and the
// metadata service of a cloud trust the server more than they should trust an operator.
var refused = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
	"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"168.63.129.16/32", // the platform service of a cloud, at a public address
	"::/96",            // unspecified, loopback, and IPv4-compatible
	"64:ff9b:1::/48",   // NAT64 with a local prefix, which may lead anywhere
	"100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16",
	"fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)

func prefixes(list ...string) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// nat64 and sixToFour are the IPv6 networks with an IPv4 address in them.
var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

// inside returns the IPv4 address that an IPv6 address leads to, or the address itself.
func inside(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	b := a.As16()
	switch {
	case a.Is4():
	case nat64.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16]))
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return a
}

// Check returns an error if no request may go to an address.
func (p *Policy) Check(addr netip.Addr) error {
	real := inside(addr)
	for _, allowed := range p.AllowPrivate {
		if allowed.Contains(real) || allowed.Contains(addr.Unmap().WithZone("")) {
			return nil
		}
	}
	if !real.IsValid() {
		return fmt.Errorf("%w: it is no IP address", ErrAddress)
	}
	for _, r := range refused {
		if r.Contains(real) {
			return fmt.Errorf("%w: %s is in the private or reserved network %s; an administrator can allow it with --webhook-allow-private on the global servers", ErrAddress, addr, r)
		}
	}
	return nil
}

// Dialer returns a dialer that opens connections to allowed addresses only.
func (p *Policy) Dialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{Timeout: timeout, ControlContext: p.control}
}

// control refuses a connection after the name was resolved and before it is opened, so that a name
// whose address changes between a check and its use cannot pass.
func (p *Policy) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAddress, err)
	}
	return p.Check(at.Addr())
}

// dial opens a connection to an address that the policy allows.
func (p *Policy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if p.Dial != nil {
		if err := p.control(ctx, network, address, nil); err != nil {
			return nil, err
		}
		return p.Dial(ctx, address)
	}
	return p.Dialer(handshake).DialContext(ctx, network, address)
}

// CheckURL returns an error if a URL cannot be the URL of an endpoint. It resolves no name.
func (p *Policy) CheckURL(raw string) error {
	if raw == "" {
		return errors.New("give the URL of the endpoint")
	}
	if len(raw) > MaxURL {
		return fmt.Errorf("%d bytes long, the limit is %d", len(raw), MaxURL)
	}
	u, err := url.Parse(raw)
	if err != nil {
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err
		}
		return fmt.Errorf("not a URL: %w", err)
	}
	switch {
	case u.Scheme == "http" && !p.AllowHTTP:
		return errors.New("http is not encrypted: use https, or start the global servers with --webhook-allow-http")
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("the scheme is %q: use https", u.Scheme)
	case u.Opaque != "" || u.Hostname() == "":
		return errors.New("the host is missing: write https://HOST/PATH")
	case u.User != nil:
		return errors.New("a user or a password in a URL is shown to everyone who may read webhooks: check the signature instead")
	case u.Fragment != "" || strings.HasSuffix(raw, "#"):
		return errors.New("a fragment (#) is never sent: leave it out")
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		return p.Check(addr)
	}
	return nil
}
