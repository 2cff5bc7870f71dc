package wan

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/notify"
	"github.com/nusa-scheduler/nusa/topology"
)

// ErrNoRoute means that the table has no round trip for a pair of regions.
var ErrNoRoute = errors.New("no round trip in the table")

// ErrClosed means that the emulated network was closed.
var ErrClosed = errors.New("emulated network is closed")

// Config configures an emulated network.
type Config struct {
	// Table has the round trips. Two regions with a blank are not connected;
	// topology.Table.Fill fills blanks.
	Table *topology.Table
	// Inner carries the bytes. A nil function of Inner is replaced by the same function of
	// network.Host.
	Inner network.Net
	// Seed is the seed of the random losses.
	Seed uint64
}

// pair is a directed pair of regions.
type pair struct{ from, to string }

// WAN is one emulated network. It is safe for concurrent use.
type WAN struct {
	inner network.Net
	ticks *timekeeper

	mu      sync.Mutex
	table   *topology.Table
	rnd     *rand.Rand
	rtt     map[pair]time.Duration // round trips that SetRTT has set; the others are those of table
	loss    map[pair]float64
	cut     map[pair]bool
	healed  notify.Signal // notified when cut or table has changed
	streams map[uint16]string
	packets map[uint16]string
	flows   map[flow]uint16 // the port of the initiator, by flow
	open    map[*stream]struct{}
	done    chan struct{}  // closed by Close
	running sync.WaitGroup // the goroutines of streams and packet connections
}

// New returns an emulated network. Close ends it.
func New(cfg Config) *WAN {
	host := network.Host()
	precise := cfg.Inner.Dial == nil && cfg.Inner.ListenPacket == nil
	if cfg.Inner.Listen == nil {
		cfg.Inner.Listen = host.Listen
	}
	if cfg.Inner.Dial == nil {
		cfg.Inner.Dial = host.Dial
	}
	if cfg.Inner.ListenPacket == nil {
		cfg.Inner.ListenPacket = host.ListenPacket
	}
	return &WAN{
		table:   cfg.Table,
		inner:   cfg.Inner,
		ticks:   newTimekeeper(precise),
		rnd:     rand.New(rand.NewPCG(cfg.Seed, 0x77616e)),
		rtt:     make(map[pair]time.Duration),
		loss:    make(map[pair]float64),
		cut:     make(map[pair]bool),
		streams: make(map[uint16]string),
		packets: make(map[uint16]string),
		flows:   make(map[flow]uint16),
		open:    make(map[*stream]struct{}),
		done:    make(chan struct{}),
	}
}

// Net returns the network as a region sees it. The ports of its listeners and packet
// connections belong to the region until they are closed.
func (w *WAN) Net(region string) network.Net {
	r := regionNet{wan: w, region: region}
	return network.Net{Listen: r.listen, Dial: r.dial, ListenPacket: r.listenPacket}
}

// RTT returns the present round trip of a directed pair: the value that SetRTT has set, or
// else the value in the table. If there is none, the error is ErrNoRoute.
func (w *WAN) RTT(from, to string) (time.Duration, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rttLocked(from, to)
}

func (w *WAN) rttLocked(from, to string) (time.Duration, error) {
	if d, ok := w.rtt[pair{from, to}]; ok {
		return d, nil
	}
	if d, ok := w.table.RTT(from, to); ok {
		return d, nil
	}
	return 0, fmt.Errorf("%s to %s: %w", from, to, ErrNoRoute)
}

// SetTable sets all round trips from now on, including those that SetRTT has set. Bytes in
// flight keep their delay. If the table has a blank for a pair, open streams of the pair
// stall as after Cut, until a later table connects the pair again.
func (w *WAN) SetTable(t *topology.Table) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.table = t
	clear(w.rtt)
	w.wakeLocked()
}

// SetRTT sets the round trip of a directed pair from now on. Bytes in flight keep their
// delay.
func (w *WAN) SetRTT(from, to string, rtt time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rtt[pair{from, to}] = max(rtt, 0)
}

// SetLoss sets the share (0..1) of the datagrams from one region to another that are lost.
// Responses are datagrams in the reverse direction. Streams lose nothing.
func (w *WAN) SetLoss(from, to string, share float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loss[pair{from, to}] = min(max(share, 0), 1)
}

// Cut disconnects two regions in both directions. Datagrams are lost, connects hang until
// their context ends, and open streams stall.
func (w *WAN) Cut(a, b string) { w.setCut(a, b, true) }

// Heal connects two regions again after Cut or CutOneWay. Stalled streams continue where
// they stopped.
func (w *WAN) Heal(a, b string) { w.setCut(a, b, false) }

// CutOneWay cuts the way from one region to another, but not the way back. Only datagrams
// in that direction are lost. Streams stall in both directions, because nothing is
// acknowledged. Heal ends the cut.
func (w *WAN) CutOneWay(from, to string) { w.setCuts(true, pair{from, to}) }

func (w *WAN) setCut(a, b string, cut bool) { w.setCuts(cut, pair{a, b}, pair{b, a}) }

func (w *WAN) setCuts(cut bool, pairs ...pair) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range pairs {
		if cut {
			w.cut[p] = true
		} else {
			delete(w.cut, p)
		}
	}
	w.wakeLocked()
}

// wakeLocked wakes the goroutines that wait for a path.
func (w *WAN) wakeLocked() { w.healed.Notify() }

// Close aborts every open stream, drops everything in flight, and returns when all
// goroutines of the network have ended. The owners of listeners and packet connections
// must close these themselves.
func (w *WAN) Close() {
	w.mu.Lock()
	if !w.closedLocked() {
		close(w.done)
	}
	open := slices.Collect(maps.Keys(w.open))
	w.mu.Unlock()
	for _, s := range open {
		s.abort()
	}
	w.running.Wait()
	w.ticks.close()
}

func (w *WAN) closedLocked() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// awaitPath waits until a pair has a round trip and is not cut in either direction, and
// then returns true. It returns false if cancel or the WAN is closed before.
func (w *WAN) awaitPath(p pair, cancel <-chan struct{}) bool {
	for {
		w.mu.Lock()
		_, noRoute := w.rttLocked(p.from, p.to)
		cut, healed := w.cut[p] || w.cut[pair{p.to, p.from}] || noRoute != nil, w.healed.C()
		w.mu.Unlock()
		if !cut {
			return true
		}
		select {
		case <-healed:
		case <-cancel:
			return false
		case <-w.done:
			return false
		}
	}
}

// portOf returns the port of "host:port"; 0 if there is none.
func portOf(addr string) uint16 {
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		return 0
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(port)
}
