package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/internal/discovery"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
)

const (
	// maxConns bounds the TCP connections, and maxQueries the questions on one of them.
	maxConns   = 128
	maxQueries = 128
	// maxAtOnce bounds the questions that are answered at the same time. Further ones get SERVFAIL.
	maxAtOnce = 256
	// idle is how long a TCP connection may be silent. ioLimit bounds one read or write.
	idle    = 10 * time.Second
	ioLimit = 2 * time.Second
	// maxDatagram bounds a reply over UDP. Such a reply passes most networks in one piece, and the address that
	// asks may be forged: then another machine gets the reply. A client with a larger one asks again over TCP.
	maxDatagram = 1232
)

// Server answers DNS questions over UDP and TCP.
type Server struct {
	store *discovery.Store
	log   *slog.Logger
	udp   net.PacketConn
	tcp   net.Listener
	busy  chan struct{}
}

// Listen opens the sockets of a server at an address. UDP and TCP have the same port.
func Listen(ctx context.Context, n network.Net, addr string, store *discovery.Store, log *slog.Logger) (*Server, error) {
	tcp, err := n.Listen(ctx, addr)
	if err != nil {
		return nil, serve.ListenError(addr, "--dns-addr", err)
	}
	udp, err := n.ListenPacket(ctx, tcp.Addr().String())
	if err != nil {
		tcp.Close()
		return nil, serve.ListenError(addr, "--dns-addr", err)
	}
	return &Server{store: store, log: log, udp: udp, tcp: netutil.LimitListener(tcp, maxConns), busy: make(chan struct{}, maxAtOnce)}, nil
}

// Addr returns the address of the server, "host:port".
func (s *Server) Addr() string { return s.tcp.Addr().String() }

// Close closes the sockets of a server that does not run.
func (s *Server) Close() { _ = errors.Join(s.udp.Close(), s.tcp.Close()) }

// Run answers questions until ctx ends or a socket fails. It closes the sockets.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	udp := &dns.Server{PacketConn: s.udp, Handler: dns.HandlerFunc(s.handle), ReadTimeout: ioLimit, WriteTimeout: ioLimit, UDPSize: dns.DefaultMsgSize}
	tcp := &dns.Server{
		Listener: s.tcp, Handler: dns.HandlerFunc(s.handle), ReadTimeout: ioLimit, WriteTimeout: ioLimit,
		IdleTimeout: func() time.Duration { return idle }, MaxTCPQueries: maxQueries,
	}
	for _, one := range []*dns.Server{udp, tcp} {
		began := make(chan struct{})
		one.NotifyStartedFunc = func() { close(began) }
		ended := make(chan struct{})
		g.Go(func() error {
			defer close(ended)
			err := one.ActivateAndServe()
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("DNS server: %w", err)
		})
		g.Go(func() error {
			<-ctx.Done()
			select {
			case <-began: // only a server that has begun can be shut down
				_ = one.Shutdown() // the only error is that the server has ended
			case <-ended:
			}
			return nil
		})
	}
	return g.Wait()
}

// handle answers one question.
func (s *Server) handle(w dns.ResponseWriter, r *dns.Msg) {
	_, datagram := w.RemoteAddr().(*net.UDPAddr)
	var m *dns.Msg
	select {
	case s.busy <- struct{}{}:
		m = Reply(s.store, r)
		<-s.busy
	default:
		m = new(dns.Msg).SetRcode(r, dns.RcodeServerFailure)
	}
	if datagram {
		m.Truncate(sizeFor(r))
	}
	if err := w.WriteMsg(m); err != nil {
		s.log.Debug("a DNS reply is not sent", "to", w.RemoteAddr().String(), "error", err)
	}
}

// sizeFor returns how many bytes a reply over UDP may have.
func sizeFor(r *dns.Msg) int {
	if o := r.IsEdns0(); o != nil {
		return min(max(int(o.UDPSize()), dns.MinMsgSize), maxDatagram)
	}
	return dns.MinMsgSize
}
