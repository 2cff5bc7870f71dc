package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// ResponderConfig configures a Responder. The zero value of a field is its default.
type ResponderConfig struct {
	// Net carries the probes.
	Net network.Net
	// Region is the region that responds. Packets for other regions are ignored.
	Region string
	// Addr is the address to listen on, for UDP and TCP; default "127.0.0.1:7613". Port 0
	// selects a port that is free for both.
	Addr string
	// Keys authenticate probes and responses (HMAC-SHA256). The response to a packet has
	// the same key. Packets with other keys are ignored. Empty means no key.
	Keys [][]byte
	// Ring replaces Keys, and may change while the responder runs.
	Ring *Keyring
	// PerSource bounds the responses per second to one host. Total bounds the responses
	// per second to all hosts. The defaults are 200 and 5,000.
	PerSource float64
	Total     float64
	// Logger receives warnings; default: none.
	Logger *slog.Logger
}

const (
	defaultPerSource = 200
	defaultTotal     = 5000
	// maxSources and sourceIdle bound the table of hosts' rate limits. Hosts that have no
	// entry because the table is full share one limit.
	maxSources = 1024
	sourceIdle = 10 * time.Second
	// maxSessions and sessionIdle bound the table of sessions. A session is forgotten if
	// its prober sends nothing for sessionIdle. Only a prober of 30,000 regions is so
	// slow.
	maxSessions = 4096
	sessionIdle = 10 * time.Minute
	// portTries is how often port 0 is tried until one is free for UDP and TCP.
	portTries = 8
	// maxProofs bounds the connects that wait for a request. Further connects are closed
	// at once. maxProofsEach bounds the waiting connects of one host, so that a host that
	// connects and sends nothing does not take the places of other hosts. proofWithin
	// bounds the wait; a prober waits equally long for the response.
	maxProofs     = 256
	maxProofsEach = 32
	proofWithin   = 2 * time.Second
	// acceptPause is the pause after an error of Accept that may pass, for example too
	// many open files.
	acceptPause = 50 * time.Millisecond
)

// Responder responds to probes: to a UDP packet with a packet of the same size, and to a
// TCP connect by accepting it and sending one such packet over the connection. It ignores
// everything else. A request gets one response. A recorded request that is sent again is
// ignored as long as its session is remembered. After that a repeated request gets one
// more response, which no prober waits for.
type Responder struct {
	cfg ResponderConfig
	udp net.PacketConn
	tcp net.Listener

	mu       sync.Mutex
	limits   limits
	sessions expiringTable[sessionKey, *session]
	lastSeen expiringTable[uint64, time.Time] // when a probe last arrived, by the hash of the region
	proofs   int                              // the number of connects that wait for a request
	proofsOf map[string]int                   // the same, by host
}

type sessionKey struct{ from, session uint64 }

// session is the responder's state of a prober's session.
type session struct {
	highest uint64
	arrivals
}

// Listen opens the sockets of a responder. Run serves them.
func Listen(ctx context.Context, cfg ResponderConfig) (*Responder, error) {
	if cfg.Addr == "" {
		cfg.Addr = fmt.Sprintf("127.0.0.1:%d", DefaultPort)
	}
	if cfg.PerSource <= 0 {
		cfg.PerSource = defaultPerSource
	}
	if cfg.Total <= 0 {
		cfg.Total = defaultTotal
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Responder{
		cfg: cfg, limits: newLimits(cfg.PerSource, cfg.Total),
		sessions: newExpiringTable[sessionKey, *session](maxSessions, sessionIdle),
		lastSeen: newExpiringTable[uint64, time.Time](maxSessions, sessionIdle),
		proofsOf: map[string]int{},
	}
	_, port, err := net.SplitHostPort(cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("probe responder address %q: %w", cfg.Addr, err)
	}
	tries := 1
	if port == "0" {
		tries = portTries
	}
	for range tries {
		err = r.listen(ctx)
		if err == nil {
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

// Addr returns the address of the sockets, "host:port".
func (r *Responder) Addr() string { return r.udp.LocalAddr().String() }

// Run responds to probes until ctx ends. Then it closes the sockets and returns nil. An
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

// Close closes the sockets of a responder whose Run is not called.
func (r *Responder) Close() error { return errors.Join(r.udp.Close(), r.tcp.Close()) }

func (r *Responder) answer(ctx context.Context) error {
	read, _ := receiver(r.udp)
	buf := make([]byte, 2*packetSize)
	for {
		n, from, waited, err := read(buf)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("receive: %w", err)
		}
		if reply := r.reply(buf[:n], from, time.Now().Add(-waited)); reply != nil {
			if _, err := r.udp.WriteTo(reply, from); err != nil && ctx.Err() == nil {
				r.cfg.Logger.Debug("probe not answered", "to", from, "error", err)
			}
		}
	}
}

// reply returns the response to a packet that arrived at the time got; nil = no response.
// The order of the checks matters: only hosts with the key can fill tables or use up
// limits.
func (r *Responder) reply(b []byte, from net.Addr, got time.Time) []byte {
	p, key, err := decode(b, r.cfg.Ring.or(r.cfg.Keys), r.cfg.Region)
	if err != nil || p.kind != kindRequest {
		r.cfg.Logger.Debug("probe ignored", "from", from, "error", err)
		return nil
	}
	around, allowed, fresh := r.note(p, hostOf(from), got)
	if !allowed {
		return nil
	}
	if !fresh {
		r.cfg.Logger.Debug("probe ignored: it arrived before", "from", from)
		return nil
	}
	p.kind, p.arrivals, p.responderDelay = kindAnswer, around, max(0, time.Since(got))
	return p.encode(key, r.cfg.Region)
}

// note records a request if the limit of its host allows a response. fresh is false if the
// request arrived before. note is safe for concurrent use, because requests arrive over
// UDP and over many connects at the same time.
func (r *Responder) note(p packet, host string, now time.Time) (around arrivals, allowed, fresh bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.limits.allow(host, now) {
		return arrivals{}, false, false
	}
	key := sessionKey{p.from, p.session}
	s, known := r.sessions.get(key, now)
	if !known {
		s = &session{}
		r.sessions.put(key, s, now) // if there is no room, the request gets a response but is not remembered
	}
	around, fresh = s.note(&s.highest, p.sequence)
	if fresh {
		r.lastSeen.put(p.from, now, now)
	}
	return around, true, fresh
}

// LastSeen returns how long ago a probe of a region arrived here, and false if no probe is
// remembered. If this region's own probes of that region get no response, LastSeen shows
// whether the path is broken in one direction or in both. Without keys any host can forge
// such probes.
func (r *Responder) LastSeen(region string) (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	at, ok := r.lastSeen.get(regionID(region), now)
	return max(0, now.Sub(at)), ok
}

// accept accepts connects. The connect itself was the probe, and the kernel has responded
// to it. One request may follow, to which the response proves the identity of this
// responder.
func (r *Responder) accept(ctx context.Context) error {
	var proofs sync.WaitGroup
	defer proofs.Wait()
	for {
		conn, err := r.tcp.Accept()
		switch {
		case err == nil:
			host := hostOf(conn.RemoteAddr())
			if !r.mayProve(host) {
				conn.Close()
				continue
			}
			proofs.Go(func() {
				defer r.proved(host)
				r.prove(ctx, conn)
			})
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

// mayProve reserves a place for a connect of a host. It returns false if no place is left.
func (r *Responder) mayProve(host string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.proofs >= maxProofs || r.proofsOf[host] >= maxProofsEach {
		return false
	}
	r.proofs++
	r.proofsOf[host]++
	return true
}

// proved releases the place of a connect.
func (r *Responder) proved(host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proofs--
	r.proofsOf[host]--
	if r.proofsOf[host] == 0 {
		delete(r.proofsOf, host)
	}
}

// prove responds to a request on a connect, if a request arrives in time and would get a
// response over UDP. Then it closes the connection.
func (r *Responder) prove(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	b := make([]byte, packetSize)
	if conn.SetDeadline(time.Now().Add(proofWithin)) != nil {
		return
	}
	if _, err := io.ReadFull(conn, b); err != nil {
		return // a prober of an earlier version sends no request
	}
	if reply := r.reply(b, conn.RemoteAddr(), time.Now()); reply != nil {
		if _, err := conn.Write(reply); err != nil && ctx.Err() == nil {
			r.cfg.Logger.Debug("connect not proven", "to", conn.RemoteAddr(), "error", err)
		}
	}
}

// limits bound the responses to each host and to all hosts. They are not safe for
// concurrent use.
type limits struct {
	each   rate.Limit
	total  *rate.Limiter
	byHost expiringTable[string, *rate.Limiter]
	others *rate.Limiter // for hosts without an entry
}

func newLimits(each, total float64) limits {
	return limits{
		each: rate.Limit(each), total: burstOfASecond(rate.Limit(total)),
		byHost: newExpiringTable[string, *rate.Limiter](maxSources, sourceIdle),
		others: burstOfASecond(rate.Limit(each)),
	}
}

func burstOfASecond(l rate.Limit) *rate.Limiter { return rate.NewLimiter(l, max(1, int(l))) }

func (l *limits) allow(host string, now time.Time) bool {
	own, known := l.byHost.get(host, now)
	if !known {
		own = burstOfASecond(l.each)
		if !l.byHost.put(host, own, now) {
			own = l.others
		}
	}
	return own.AllowN(now, 1) && l.total.AllowN(now, 1)
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
