package topology

import (
	"errors"
	"fmt"
	"time"
)

// ErrUnknownRegion means that the view has no region of that name.
var ErrUnknownRegion = errors.New("unknown region")

// Location is a point on Earth.
type Location struct {
	// Latitude is in degrees, -90..90, north positive.
	Latitude float64
	// Longitude is in degrees, -180..180, east positive.
	Longitude float64
	// Name is a free text such as "Singapore". It may be empty.
	Name string
}

// Coordinate is a position in the coordinate space of Vivaldi, with height and adjustment
// (Dabek et al., SIGCOMM 2004; Lee et al., 2005). The unit is seconds of round trip.
type Coordinate struct {
	Vector []float64
	// Error is the owner's estimate of the relative error of distances from this
	// coordinate, 0..1.5. It is 1.5 if there are no samples yet.
	Error      float64
	Adjustment float64
	Height     float64
}

// Region is one region of a federation. Location and Coordinate are nil if unknown.
type Region struct {
	Name       string
	Location   *Location
	Labels     map[string]string
	Coordinate *Coordinate
}

// State says whether a measurement is current. The values are those of EdgeState in the
// API.
type State uint8

const (
	// Unknown: the edge was never measured. Predictions and estimates have this state.
	Unknown State = iota
	// OK: the edge was measured recently.
	OK
	// Stale: the edge was measured, but the latest response is old.
	Stale
	// Unreachable: the latest probes got no response. The values, if any, come from
	// earlier probes.
	Unreachable
)

func (s State) String() string {
	switch s {
	case Unknown:
		return "unknown"
	case OK:
		return "ok"
	case Stale:
		return "stale"
	case Unreachable:
		return "unreachable"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Source says where a value comes from. The values are those of RTTSource in the API.
type Source uint8

const (
	// None: there is no value.
	None Source = iota
	// Measured: the value was measured by probes.
	Measured
	// Predicted: the value was predicted from measurements of other pairs.
	Predicted
	// Estimated: the value was estimated from the great-circle distance.
	Estimated
)

func (s Source) String() string {
	switch s {
	case None:
		return "none"
	case Measured:
		return "measured"
	case Predicted:
		return "predicted"
	case Estimated:
		return "estimated"
	}
	return fmt.Sprintf("source(%d)", uint8(s))
}

// lessTrusted reports whether s is trusted less than t. In the order of decreasing trust
// the sources are Measured, Predicted, Estimated and None.
func (s Source) lessTrusted(t Source) bool {
	if s == None || t == None {
		return s == None && t != None
	}
	return s > t
}

// Percentile is a percentile of the round trips of a window: 50, 90 or 99. Another value
// counts as the next higher of these. A value above 99 counts as 99, and 0 counts as 50.
type Percentile int

// Edge describes the round trip of the directed pair From → To: region From probes region
// To. P50, P90 and P99 are percentiles of the latest samples, and Min is the smallest of
// these samples.
type Edge struct {
	From, To string
	State    State
	Source   Source
	P50      time.Duration
	P90      time.Duration
	P99      time.Duration
	Min      time.Duration
	// Jitter is the smoothed difference of successive samples (RFC 3550, 6.4.1).
	Jitter time.Duration
	// Loss is the share of lost probes among the latest probes, 0..1.
	Loss float64
	// LossOut and LossBack are the parts of Loss that were lost on the way to To, and on
	// the way back. The direction of the other losses is unknown, because only a later
	// response reports which requests arrived.
	LossOut, LossBack float64
	// Samples is the number of round trips from which the percentiles are computed.
	Samples int
	// SetAside is the number of the latest samples that do not count because the prober or
	// the responder itself was delayed.
	SetAside int
	// Age is the time since the latest response; 0 if Source is not Measured.
	Age time.Duration
	// Method is "udp", "tcp" or "connect", see package probe; empty if Source
	// is not Measured.
	Method string
	// ReverseReachable is set on an unreachable edge if probes from To reach From. Then
	// the way to To is broken or To does not respond, but the way back works.
	ReverseReachable bool
	// Error is the expected relative error of a predicted or estimated value, ≥ 0. For
	// example, 0.2 means 20 %.
	Error float64
	// Doubt says why a measurement is probably wrong. It is empty if the measurement is
	// not doubted.
	Doubt string
}

// RTT returns the round trip at a percentile.
func (e Edge) RTT(p Percentile) time.Duration {
	switch {
	case p <= 50:
		return e.P50
	case p <= 90:
		return e.P90
	}
	return e.P99
}

// Distance is the network distance of two places: the round trip of the worse direction.
type Distance struct {
	RTT    time.Duration
	State  State
	Source Source
	// Age is the age of the measurement; 0 if not measured.
	Age time.Duration
	// Error is the expected relative error if the distance is predicted or estimated.
	Error float64
	// Method is the method of the measurement; empty if not measured.
	Method string
}

// Known reports whether RTT is meaningful now: there is a value, and the place is not
// unreachable. The value may be stale, predicted or estimated; see State and Source.
func (d Distance) Known() bool { return d.Source != None && d.State != Unreachable }

func (d Distance) String() string {
	switch {
	case d.State == Unreachable:
		return "unreachable"
	case d.Source == None:
		return "unknown"
	case d.Source != Measured:
		return fmt.Sprintf("%.1fms (%s, ±%.0f%%)", ms(d.RTT), d.Source, d.Error*100)
	case d.State == Stale:
		return fmt.Sprintf("%.1fms (stale, %s old)", ms(d.RTT), d.Age.Round(time.Second))
	}
	return fmt.Sprintf("%.1fms", ms(d.RTT))
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Neighbour is a region with its distance, as View.Nearest returns it.
type Neighbour struct {
	Region   string
	Distance Distance
}
