package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// ResponderConfig is what Listen needs. The zero value of a field is its
// default.
type ResponderConfig struct {
	// Net carries the probes.
	Net network.Net
	// Addr to answer on, UDP and TCP; default "127.0.0.1:7613". Port 0 takes a
	// port that is free for both.
	Addr string
	// Key authenticates probes and answers; nil is none.
	Key []byte
	// PerSource bounds the answers per second to one source host; default 200.
	PerSource float64
	// Logger; default discards.
	Logger *slog.Logger
}

const (
	defaultPerSource = 200
	// maxSources bounds the table of rate limits. When it is full, one that was
	// quiet for sourceIdle makes room; if none was, a newcomer gets no answer.
	maxSources = 1024
	sourceIdle = 10 * time.Second
	// portTries: how often port 0 is tried until one is free for UDP and TCP.
	portTries = 8
	// acceptPause after an error that may pass, such as too many open files.
	acceptPause = 50 * time.Millisecond
)

// Responder answers probes: UDP packets with one of the same size, TCP
// connects by accepting and closing.
type Responder struct {
	cfg     ResponderConfig
	udp     net.PacketConn
	tcp     net.Listener
	sources sources
}

// Listen opens the sockets; Run serves them.
func Listen(ctx context.Context, cfg ResponderConfig) (*Responder, error) {
	if cfg.Addr == "" {
		cfg.Addr = fmt.Sprintf("127.0.0.1:%d", DefaultPort)
	}
	if cfg.PerSource <= 0 {
		cfg.PerSource = defaultPerSource
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Responder{cfg: cfg, sources: sources{limit: rate.Limit(cfg.PerSource), byHost: make(map[string]*source)}}
	_, port, err := net.SplitHostPort(cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("probe responder address %q: %w", cfg.Addr, err)
	}
	tries := 1
	if port == "0" {
		tries = portTries
	}
	for range tries {
		if err = r.listen(ctx); err == nil {
			return r, nil
		}
	}
	return nil, fmt.Errorf("probe responder on %s: %w", cfg.Addr, err)
}

func (r *Responder) listen(ctx context.Context) error {
	udp, err := r.cfg.Net.ListenPacket(ctx, r.cfg.Addr)
	if err != nil {
		return err
	}
	tcp, err := r.cfg.Net.Listen(ctx, udp.LocalAddr().String())
	if err != nil {
		return errors.Join(err, udp.Close())
	}
	r.udp, r.tcp = udp, tcp
	return nil
}

// Addr is the bound address, "host:port".
func (r *Responder) Addr() string { return r.udp.LocalAddr().String() }

// Run answers until ctx ends, then closes the sockets and returns nil; an
// error means that a socket failed.
func (r *Responder) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.answer(ctx) })
	g.Go(func() error { return r.accept(ctx) })
	g.Go(func() error {
		<-ctx.Done()
		return errors.Join(r.udp.Close(), r.tcp.Close())
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("probe responder: %w", err)
	}
	return nil
}

// Close closes the sockets of a responder that is not run.
func (r *Responder) Close() error { return errors.Join(r.udp.Close(), r.tcp.Close()) }

func (r *Responder) answer(ctx context.Context) error {
	buf := make([]byte, 2*packetSize)
	for {
		n, from, err := r.udp.ReadFrom(buf)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("receive: %w", err)
		}
		got := time.Now()
		p, err := decode(buf[:n], r.cfg.Key)
		if err != nil || p.kind != kindRequest {
			r.cfg.Logger.Debug("probe ignored", "from", from, "error", err)
			continue
		}
		if !r.sources.allow(from, got) {
			continue
		}
		p.kind, p.held = kindAnswer, time.Since(got)
		if _, err := r.udp.WriteTo(p.encode(r.cfg.Key), from); err != nil && ctx.Err() == nil {
			r.cfg.Logger.Debug("probe not answered", "to", from, "error", err)
		}
	}
}

func (r *Responder) accept(ctx context.Context) error {
	for {
		conn, err := r.tcp.Accept()
		switch {
		case err == nil:
			// The connect was the probe. It was answered by the kernel, so
			// there is nothing to refuse; closing costs nothing.
			conn.Close()
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept: %w", err)
		default:
			r.cfg.Logger.Warn("probe connect not accepted", "error", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// sources limits the answers to each host.
type sources struct {
	limit rate.Limit

	mu     sync.Mutex
	byHost map[string]*source
}

type source struct {
	limiter *rate.Limiter
	last    time.Time
}

func (s *sources) allow(from net.Addr, now time.Time) bool {
	host := hostOf(from)
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.byHost[host]
	if !ok {
		if len(s.byHost) >= maxSources && !s.makeRoom(now) {
			return false
		}
		known = &source{limiter: rate.NewLimiter(s.limit, max(1, int(s.limit)))}
		s.byHost[host] = known
	}
	known.last = now
	return known.limiter.AllowN(now, 1)
}

// makeRoom forgets the source that was quiet for longest.
func (s *sources) makeRoom(now time.Time) bool {
	oldest, at := "", now.Add(-sourceIdle)
	for host, known := range s.byHost {
		if known.last.Before(at) {
			oldest, at = host, known.last
		}
	}
	if oldest == "" {
		return false
	}
	delete(s.byHost, oldest)
	return true
}

func hostOf(addr net.Addr) string {
	if udp, ok := addr.(*net.UDPAddr); ok {
		return udp.IP.String()
	}
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	return host
}
