package setup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// Bounds of one request for an artifact.
const (
	maxRedirects  = 5
	answerLimit   = 30 * time.Second
	tlsLimit      = 10 * time.Second
	maxHeaderSize = 64 << 10
)

// special are address blocks that look public but are not, or that lead to other addresses.
// Their source is the registry of special-purpose addresses (RFC 6890).
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("168.63.129.16/32"), netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("2001::/32"),
}

// metadata are the addresses at which clouds serve the credentials of a machine: all
// link-local addresses, and the other addresses that some clouds use.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("fd00:ec2::/32"),
	netip.MustParsePrefix("168.63.129.16/32"), netip.MustParsePrefix("100.100.100.200/32"), netip.MustParsePrefix("192.0.0.192/32"),
}

// allowAddr returns nil if artifacts may be fetched from an address. That is so for a
// public address and for an address in a prefix that the operator allows. A metadata
// address is allowed only by a prefix within the metadata block, not by a wider prefix.
func (s *Setup) allowAddr(ip netip.Addr) error {
	ip = ip.Unmap().WithZone("")
	for _, p := range s.nets {
		if !p.Contains(ip) {
			continue
		}
		meant := true
		for _, l := range metadata {
			meant = meant && (!l.Contains(ip) || p.Bits() >= l.Bits())
		}
		if meant {
			return nil
		}
	}
	public := ip.IsGlobalUnicast() && !ip.IsPrivate()
	for _, p := range special {
		public = public && !p.Contains(ip)
	}
	if public {
		return nil
	}
	return fmt.Errorf("%w: %s is not a public address, and --artifacts-allow does not name it", driver.ErrNotAllowed, ip)
}

// allowSource checks a source without using the network.
func (s *Setup) allowSource(source string) error {
	u, err := url.Parse(source)
	if err != nil {
		return errors.New("not an address")
	}
	switch u.Scheme {
	case "file":
		_, _, err := s.folderOf(u.Path)
		return err
	case "http", "https":
		if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
			return s.allowAddr(ip)
		}
		return nil
	}
	return fmt.Errorf("%s is neither https nor http nor file", u.Scheme)
}

// folderOf returns the folder of --artifacts-allow that contains a file, and the file's
// path in the folder.
func (s *Setup) folderOf(path string) (folder, rel string, err error) {
	for _, f := range s.folders {
		if rel, err := filepath.Rel(f, filepath.Clean(path)); err == nil && filepath.IsLocal(rel) && rel != "." {
			return f, rel, nil
		}
	}
	return "", "", fmt.Errorf("%w: %s is in no folder that --artifacts-allow names", driver.ErrNotAllowed, path)
}

// newClient returns a client that dials only addresses that allowAddr accepts, for every
// resolved name and every redirect. It uses no proxy, because a proxy would dial other
// addresses.
func (s *Setup) newClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext: s.dial, TLSClientConfig: s.cfg.TLS, ForceAttemptHTTP2: true,
			DisableKeepAlives: true, DisableCompression: true,
			TLSHandshakeTimeout: tlsLimit, ResponseHeaderTimeout: answerLimit, MaxResponseHeaderBytes: maxHeaderSize,
		},
	}
}

// errRedirect: a server redirects to an address that is not allowed.
var errRedirect = errors.New("redirect refused")

func checkRedirect(checksum bool) func(*http.Request, []*http.Request) error {
	return func(req *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return fmt.Errorf("%w: more than %d", errRedirect, maxRedirects)
		}
		req.Header.Del("Referer") // the source, whose query may contain a secret
		if req.URL.Scheme == "http" && !checksum {
			return fmt.Errorf("%w: to http, which is allowed only for a file with a checksum", errRedirect)
		}
		return nil
	}
}

// dial resolves a host name, checks each address and connects to a checked address, so that
// no second resolution can give another address.
func (s *Setup) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	var ips []netip.Addr
	if ip, err := netip.ParseAddr(host); err == nil {
		ips = []netip.Addr{ip}
	} else if ips, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
		return nil, err
	}
	err = fmt.Errorf("%s has no address", host)
	for _, ip := range ips {
		err = s.allowAddr(ip)
		if err != nil {
			continue
		}
		var conn net.Conn
		conn, err = s.cfg.Dial(ctx, net.JoinHostPort(ip.Unmap().String(), port))
		if err == nil {
			return conn, nil
		}
	}
	return nil, err
}
