package simnet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
)

const (
	// window bounds the unread bytes of one direction of a stream.
	window = 256 << 10
	// backlog bounds the streams that wait for Accept.
	backlog = 128
	// packetQueue bounds the unread datagrams. Further datagrams are dropped.
	packetQueue = 256
	// maxPacket is the largest UDP payload.
	maxPacket = 65507
	// dialPatience is how long a dial waits for the end of a cut. In that time a kernel would
	// repeat its SYN.
	dialPatience = 20 * time.Second
	// firstPort is the first port that the network chooses.
	firstPort = 40000
)

// Options are the options of a Network.
type Options struct {
	// Latency returns the one-way latency between two hosts. Default: 1 ms, and none within a host.
	Latency func(from, to string) time.Duration
	// Loss is the share of lost datagrams, 0..1.
	Loss float64
	// Seed determines which datagrams are lost.
	Seed uint64
}

// Network connects hosts. The name of a host is its IP address. Safe for concurrent use.
type Network struct {
	opts Options

	// mu guards the state of all hosts and connections. One lock is enough, because a simulation
	// runs on few cores.
	mu sync.Mutex
	// changed wakes dials when a cut ends or a host dies.
	changed *sync.Cond
	rnd     *rand.Rand
	hosts   map[string]*host
	cuts    map[[2]string]bool
	ends    map[*end]struct{}
	tap     func(Write) bool
}

// Write is one write to a stream, as the function of Tap receives it.
type Write struct {
	// From and To are addresses, as host:port.
	From, To string
	Bytes    int
}

// host is one life of a machine, which ends with Kill.
type host struct {
	name    string
	dead    bool
	streams map[int]*listener
	packets map[int]*packetConn
	next    int
}

// New returns a network without hosts.
func New(opts Options) *Network {
	if opts.Latency == nil {
		opts.Latency = func(from, to string) time.Duration {
			if from == to {
				return 0
			}
			return time.Millisecond
		}
	}
	n := &Network{
		opts:  opts,
		rnd:   rand.New(rand.NewPCG(opts.Seed, 0)),
		hosts: map[string]*host{},
		cuts:  map[[2]string]bool{},
		ends:  map[*end]struct{}{},
	}
	n.changed = sync.NewCond(&n.mu)
	return n
}

// Net returns the sockets of the host with an IP address. It starts the host if the host does not
// exist. After Kill, call Net again, because the earlier value belongs to the dead host. Loopback
// and wildcard addresses mean the host itself.
func (n *Network) Net(ip string) network.Net {
	if _, err := netip.ParseAddr(ip); err != nil {
		panic(fmt.Sprintf("simnet: host %q is not an IP address", ip))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.hosts[ip]
	if h == nil {
		h = &host{name: ip, streams: map[int]*listener{}, packets: map[int]*packetConn{}, next: firstPort}
		n.hosts[ip] = h
	}
	return network.Net{
		Listen:       func(_ context.Context, addr string) (net.Listener, error) { return n.listen(h, addr) },
		Dial:         func(ctx context.Context, addr string) (net.Conn, error) { return n.dial(ctx, h, addr) },
		ListenPacket: func(_ context.Context, addr string) (net.PacketConn, error) { return n.listenPacket(h, addr) },
	}
}

// Cut stops all traffic between two hosts until Heal: streams deliver nothing, and datagrams are
// lost.
func (n *Network) Cut(a, b string) { n.setCut(a, b, true) }

// Heal ends a Cut. Data that the streams hold arrives then.
func (n *Network) Heal(a, b string) { n.setCut(a, b, false) }

func (n *Network) setCut(a, b string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if cut {
		n.cuts[pair(a, b)] = true
		return
	}
	delete(n.cuts, pair(a, b))
	n.wakeAll()
}

// Break resets every stream between two hosts. Unread data is lost.
func (n *Network) Break(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for e := range n.ends {
		if pair(e.host.name, e.peer.host.name) == pair(a, b) {
			e.broken = true
		}
	}
	n.wakeAll()
}

// Kill closes all sockets of a host, as if kill -9 had ended its processes. Peers see a reset, or
// silence while they are cut off.
func (n *Network) Kill(ip string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.hosts[ip]
	if h == nil {
		return
	}
	h.dead = true
	delete(n.hosts, ip)
	for e := range n.ends {
		if e.host == h {
			e.broken = true
		}
	}
	for _, l := range h.streams {
		l.closed = true
		l.cond.Broadcast()
	}
	for _, p := range h.packets {
		p.closed = true
		p.cond.Broadcast()
	}
	n.wakeAll()
}

// Tap makes every write to a stream call the function tap first. If tap returns false, the write is
// lost and the stream breaks at both ends. tap must not call the network. A nil tap ends this.
func (n *Network) Tap(tap func(Write) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tap = tap
}

func pair(a, b string) [2]string {
	if a > b {
		a, b = b, a
	}
	return [2]string{a, b}
}

// up reports whether traffic passes between two hosts. The caller holds n.mu.
func (n *Network) up(a, b *host) bool { return !n.cuts[pair(a.name, b.name)] }

// wakeAll wakes all waiters. The caller holds n.mu.
func (n *Network) wakeAll() {
	for e := range n.ends {
		e.cond.Broadcast()
	}
	n.changed.Broadcast()
}

// resolve returns the host's IP and the port of addr, as seen from h.
func resolve(h *host, addr string) (ip string, port int, err error) {
	name, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	if port, err = net.LookupPort("tcp", portText); err != nil {
		return "", 0, err
	}
	if name == "" || name == "localhost" {
		return h.name, port, nil
	}
	a, err := netip.ParseAddr(name)
	if err != nil {
		return "", 0, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	if a.IsLoopback() || a.IsUnspecified() {
		return h.name, port, nil
	}
	return name, port, nil
}

// bind chooses a port. taken reports whether a port is in use. The caller holds n.mu.
func (h *host) bind(addr string, taken func(int) bool) (int, error) {
	if h.dead {
		return 0, net.ErrClosed
	}
	ip, port, err := resolve(h, addr)
	if err != nil {
		return 0, err
	}
	if ip != h.name {
		return 0, os.NewSyscallError("bind", syscall.EADDRNOTAVAIL)
	}
	if port == 0 {
		for port == 0 || taken(port) {
			port, h.next = h.next, h.next+1
		}
	}
	if taken(port) {
		return 0, os.NewSyscallError("bind", syscall.EADDRINUSE)
	}
	return port, nil
}

func (h *host) tcp(port int) *net.TCPAddr {
	return &net.TCPAddr{IP: net.ParseIP(h.name), Port: port}
}

// waitUntil waits on cond, but not longer than until at; zero means no limit. The caller holds the
// lock of cond.
func waitUntil(cond *sync.Cond, at time.Time) {
	if at.IsZero() {
		cond.Wait()
		return
	}
	// The function takes the lock, so that it cannot broadcast before the waiter waits.
	t := time.AfterFunc(time.Until(at), func() {
		cond.L.Lock()
		defer cond.L.Unlock()
		cond.Broadcast()
	})
	defer t.Stop()
	cond.Wait()
}

// earlier returns the earlier of two times. A zero time means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func past(deadline, now time.Time) bool { return !deadline.IsZero() && !now.Before(deadline) }
