package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// serverWait bounds the time for a connection to one server, if --addr names several.
const serverWait = 2 * time.Second

// servers dials the servers of --addr. It begins with the server to which the latest
// connection was made.
type servers struct {
	addrs []string

	mu   sync.Mutex
	at   int
	conn net.Conn
}

// parseServers parses the addresses of --addr, which commas separate.
func parseServers(text string) (*servers, error) {
	s := &servers{}
	for _, addr := range strings.Split(text, ",") {
		addr = strings.TrimSpace(addr)
		if addr == "" {
			return nil, errors.New("an address is empty")
		}
		addr = withDefaultPort(addr)
		if err := checkAddress(addr); err != nil {
			return nil, err
		}
		s.addrs = append(s.addrs, addr)
	}
	return s, nil
}

// checkAddress refuses an address to which no client can connect.
func checkAddress(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is not HOST[:PORT] (an IPv6 address before a port needs brackets)", addr)
	}
	if port == "" {
		return fmt.Errorf("no port follows the colon of %s: give a port, or leave the colon out for port %d", addr, defaultPort)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q: %q is not a port of 1..65535", addr, port)
	}
	return nil
}

func (s *servers) String() string { return strings.Join(s.addrs, ",") }

// dial connects to the first server that accepts a connection, in the order from the latest
// one.
func (s *servers) dial(ctx context.Context, _ string) (net.Conn, error) {
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
	return network.Host().Dial(ctx, addr)
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
