package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
)

// DefaultPort is the port of an address without a port: that of global servers.
const DefaultPort = 7600

// serverWait bounds the time for a connection to one server, if there are several.
const serverWait = 2 * time.Second

// servers opens connections to the servers of a client. It begins with the server to which the
// latest connection was made.
type servers struct {
	addrs  []string
	socket string
	open   func(ctx context.Context, addr string) (net.Conn, error)

	mu   sync.Mutex
	at   int
	conn net.Conn
}

func newServers(o *Options) (*servers, error) {
	s := &servers{socket: o.Socket, open: o.Dial}
	if s.open == nil {
		var d net.Dialer
		s.open = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	}
	switch {
	case o.Socket != "" && len(o.Addresses) > 0:
		return nil, errors.New("client: give either Socket or Addresses")
	case o.Socket == "" && len(o.Addresses) == 0:
		return nil, errors.New("client: give the address of a server in Addresses")
	}
	for _, addr := range o.Addresses {
		addr, err := Address(addr)
		if err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
		s.addrs = append(s.addrs, addr)
	}
	return s, nil
}

// Address checks the address of a server, HOST or HOST:PORT, and adds DefaultPort if it has no
// port.
func Address(addr string) (string, error) {
	addr = withDefaultPort(strings.TrimSpace(addr))
	host, port, err := net.SplitHostPort(addr)
	switch {
	case addr == "" || err == nil && host == "" && port == strconv.Itoa(DefaultPort):
		return "", errors.New("an address is empty")
	case err != nil:
		return "", fmt.Errorf("%q is not HOST[:PORT] (an IPv6 address before a port needs brackets)", addr)
	case port == "":
		return "", fmt.Errorf("no port follows the colon of %s: give a port, or leave the colon out for port %d", addr, DefaultPort)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("%q: %q is not a port of 1..65535", addr, port)
	}
	return addr, nil
}

// Addresses checks the addresses of several servers, which commas separate.
func Addresses(text string) ([]string, error) {
	var out []string
	for one := range strings.SplitSeq(text, ",") {
		addr, err := Address(one)
		if err != nil {
			return nil, err
		}
		out = append(out, addr)
	}
	return out, nil
}

// withDefaultPort adds DefaultPort to a host name or an IP address that has no port.
func withDefaultPort(addr string) string {
	if ip, err := netip.ParseAddr(strings.Trim(addr, "[]")); err == nil {
		return netip.AddrPortFrom(ip, DefaultPort).String()
	}
	if !strings.Contains(addr, ":") {
		return net.JoinHostPort(addr, strconv.Itoa(DefaultPort))
	}
	return addr
}

// authority is the name of the connection.
func (s *servers) authority() string {
	if s.socket != "" {
		return "localhost"
	}
	return s.addrs[0]
}

// dial connects to the first server that accepts a connection, in the order from the latest
// one.
func (s *servers) dial(ctx context.Context, _ string) (net.Conn, error) {
	if s.socket != "" {
		var d net.Dialer
		return d.DialContext(ctx, "unix", s.socket)
	}
	s.mu.Lock()
	first := s.at
	s.mu.Unlock()
	var last error
	for i := range s.addrs {
		at := (first + i) % len(s.addrs)
		conn, err := s.dialOne(ctx, s.addrs[at])
		if err != nil {
			last = err
			continue
		}
		s.mu.Lock()
		s.at, s.conn = at, conn
		s.mu.Unlock()
		return conn, nil
	}
	return nil, last
}

func (s *servers) dialOne(ctx context.Context, addr string) (net.Conn, error) {
	if len(s.addrs) > 1 {
		one, cancel := context.WithTimeout(ctx, serverWait)
		defer cancel()
		ctx = one
	}
	return s.open(ctx, addr)
}

// next closes the connection to the present server, which cannot serve now, and makes the
// next server the first to be tried.
func (s *servers) next() {
	if len(s.addrs) < 2 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = (s.at + 1) % len(s.addrs)
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}
