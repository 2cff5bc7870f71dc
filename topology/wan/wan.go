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

// ErrNoRoute: the table has no round trip for a pair of regions.
var ErrNoRoute = errors.New("no round trip in the table")

// ErrClosed: the emulation was closed.
var ErrClosed = errors.New("emulated network is closed")

// Config of an emulation.
type Config struct {
	// Table of round trips. Regions of a blank pair are not connected (see
	// topology.Table.Fill).
	Table *topology.Table
	// Inner carries the bytes; nil functions are those of network.Host.
	Inner network.Net
	// Seed of the random losses.
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
	rtt     map[pair]time.Duration // set by SetRTT; other round trips come from the table
	loss    map[pair]float64
	cut     map[pair]bool
	healed  notify.Signal // at every change of cut or table
	streams map[uint16]string
	packets map[uint16]string
	flows   map[flow]uint16 // → port of the socket that sent first
	open    map[*stream]struct{}
	done    chan struct{}  // closed by Close
	running sync.WaitGroup // goroutines of streams and packet conns
}

// New starts an emulation; Close ends it.
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

// Net returns the sockets of a region. Its listeners and packet conns register
// their bound port as the region's until they are closed.
func (w *WAN) Net(region string) network.Net {
	r := regionNet{wan: w, region: region}
	return network.Net{Listen: r.listen, Dial: r.dial, ListenPacket: r.listenPacket}
}

// RTT returns the present round trip of a directed pair: the value of SetRTT,
// otherwise the table's, otherwise ErrNoRoute.
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

// SetTable changes every round trip from now on, also those of SetRTT. Bytes in
// flight arrive as they were sent. Open streams of a pair that the table leaves
// blank stall, as if cut, until a table connects the pair again.
func (w *WAN) SetTable(t *topology.Table) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.table = t
	clear(w.rtt)
	w.wakeLocked()
}

// SetRTT changes the round trip of the directed pair from now on. Bytes in
// flight arrive as they were sent.
func (w *WAN) SetRTT(from, to string, rtt time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rtt[pair{from, to}] = max(rtt, 0)
}

// SetLoss loses this share (0..1) of the datagrams sent from one region to
// another; replies count as sent the other way. Streams lose nothing.
func (w *WAN) SetLoss(from, to string, share float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loss[pair{from, to}] = min(max(share, 0), 1)
}

// Cut disconnects two regions in both directions: datagrams are lost, connects
// hang until their context ends, and open streams stall.
func (w *WAN) Cut(a, b string) { w.setCut(a, b, true) }

// Heal undoes Cut: stalled streams continue where they stopped.
func (w *WAN) Heal(a, b string) { w.setCut(a, b, false) }

// CutOneWay cuts the way from one region to another and leaves the way back:
// only datagrams in that direction are lost. Streams stall in both directions,
// since nothing is acknowledged. Heal undoes it.
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

// Close aborts every open stream, drops everything in flight and returns when
// no goroutine of the emulation is left. Listeners and packet conns are closed
// by their owners.
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

// awaitPath returns true when the pair has a round trip and is not cut in either
// direction, false if it was cancelled before.
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

// portOf returns the port of "host:port", 0 if there is none.
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
