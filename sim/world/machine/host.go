package machine

import (
	"slices"
	"time"
)

// Host is one machine: a clock whose rate is up to 1 % wrong, a wall clock that may be wrong by
// hours, and processes.
type Host struct {
	E    *Engine
	Num  int
	Name string
	// ppm is the error of the clock's rate. base is the clock's reading at the boot. bootAt is the
	// true time of the boot.
	ppm          int64
	base, bootAt int64
	// WallOff is the error of the wall clock, in nanoseconds.
	WallOff int64
	// Down: the host has no power.
	Down bool
	// Off: an operator has switched the host off.
	Off  bool
	life int
	// SuspendedUntil is the true time at which a suspended host resumes.
	SuspendedUntil, ResumedAt int64
	// Slept is the total true time for which the host has been suspended.
	Slept int64
	// DiskDelay is the time of one write to the disk. DiskFull makes writes wait.
	DiskDelay time.Duration
	DiskFull  bool
	Procs     []*Proc
}

// NewHost adds a host.
func (e *Engine) NewHost(name string) *Host {
	h := &Host{E: e, Num: len(e.Hosts), Name: name, ppm: e.Rng.Int64N(20_001) - 10_000, base: e.Rng.Int64N(int64(time.Hour)),
		WallOff: int64(e.Between(-5*time.Second, 5*time.Second)), DiskDelay: 3 * time.Millisecond}
	if e.Chance(4) {
		h.ppm = Pick(e, int64(-10_000), 10_000) // the worst clocks are most likely to show an error
	}
	e.Hosts = append(e.Hosts, h)
	return h
}

// Clock reads CLOCK_BOOTTIME.
func (h *Host) Clock() time.Duration {
	d := h.E.Now - h.bootAt
	return time.Duration(h.base + d + d/1_000_000*h.ppm)
}

// Epoch is the wall clock at true time 0.
const Epoch = 1_800_000_000_000_000_000

// Wall reads the wall clock, in nanoseconds.
func (h *Host) Wall() int64 { return Epoch + h.E.Now + h.WallOff }

// TrueFor returns the true duration in which the host's clock advances by d.
func (h *Host) TrueFor(d time.Duration) time.Duration {
	return time.Duration(int64(d)/1000*1_000_000_000/(1_000_000+h.ppm)) + 1
}

// Suspended reports whether the host is suspended.
func (h *Host) Suspended() bool { return h.E.Now < h.SuspendedUntil }

// Suspend stops everything on the host except CLOCK_BOOTTIME.
func (h *Host) Suspend(d time.Duration) {
	if h.Suspended() || h.Down {
		return
	}
	h.E.Net.Disturbed()
	h.SuspendedUntil = h.E.Now + int64(d)
	h.Slept += int64(d)
	h.E.At(h.SuspendedUntil, func() { h.ResumedAt = h.E.Now; h.E.Net.Flush() })
}

// Crash is a loss of power: every process ends, and unsynced writes are lost.
func (h *Host) Crash() {
	if h.Down {
		return
	}
	h.Down = true
	h.life++
	for _, p := range slices.Clone(h.Procs) { // cloned, because the end of a run removes its process
		p.Kill(true)
	}
}

// Restart switches the host on, and starts its processes.
func (h *Host) Restart() {
	if !h.Down || h.Off {
		return
	}
	h.Down = false
	h.bootAt, h.base, h.SuspendedUntil = h.E.Now, 0, 0
	for _, p := range h.Procs {
		p.Start()
	}
}
