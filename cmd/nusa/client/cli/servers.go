package cli

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// serverWait bounds the time for a connection to one of several servers.
const serverWait = 2 * time.Second

// servers dials the servers of --addr: the latest one that answered, else the next one.
type servers struct {
	addrs []string

	mu   sync.Mutex
	at   int
	conn net.Conn
}

// parseServers reads the addresses of --addr, separated by commas.
func parseServers(text string) (*servers, error) {
	s := &servers{}
	for _, addr := range strings.Split(text, ",") {
		addr = strings.TrimSpace(addr)
		if addr == "" {
			return nil, errors.New("an address is empty")
		}
		s.addrs = append(s.addrs, withDefaultPort(addr))
	}
	return s, nil
}

func (s *servers) String() string { return strings.Join(s.addrs, ",") }

// dial connects to the first server that accepts a connection.
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

// next leaves the present server, which cannot serve now, for the next one.
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
