package topology

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hashicorp/serf/coordinate"
)

// Dimensions is the number of dimensions of the coordinate space, without the height.
// Ledlie et al. ("Network Coordinates in the Wild", NSDI 2007) found little gain by more
// dimensions.
const Dimensions = 8

// startRadius, in seconds, is the distance from the origin at which a tracker starts. It
// is large enough that two new trackers do not coincide. If they did, serf's client would
// choose a random direction. It is small enough to have no other effect.
const startRadius = 0.001

// Tracker updates the network coordinate of one region from the region's own round trips.
// The same calls give the same coordinate. A Tracker is safe for concurrent use.
type Tracker struct {
	client *coordinate.Client
}

// NewTracker returns a tracker whose coordinate starts at a point that follows from the
// name of the region.
func NewTracker(region string) *Tracker {
	client, err := coordinate.NewClient(config())
	if err != nil {
		panic(fmt.Sprintf("topology: constant coordinate configuration: %v", err))
	}
	h := fnv.New64a()
	h.Write([]byte(region))
	rnd := rand.New(rand.NewPCG(h.Sum64(), 0))
	start := client.GetCoordinate()
	var norm float64
	for i := range start.Vec {
		start.Vec[i] = rnd.NormFloat64()
		norm += start.Vec[i] * start.Vec[i]
	}
	for i := range start.Vec {
		start.Vec[i] *= startRadius / math.Sqrt(norm)
	}
	if err := client.SetCoordinate(start); err != nil {
		panic(fmt.Sprintf("topology: start coordinate: %v", err))
	}
	return &Tracker{client: client}
}

func config() *coordinate.Config {
	c := coordinate.DefaultConfig()
	c.Dimensionality = Dimensions
	return c
}

// Update updates the coordinate with one round trip (0..10 s) to a peer, and with the
// coordinate that the peer last reported.
func (t *Tracker) Update(peer string, at Coordinate, rtt time.Duration) error {
	if _, err := t.client.Update(peer, at.serf(), rtt); err != nil {
		return fmt.Errorf("coordinate of %s: %w", peer, err)
	}
	return nil
}

// Forget drops the state of a peer that was removed.
func (t *Tracker) Forget(peer string) { t.client.ForgetNode(peer) }

// Coordinate returns the present coordinate.
func (t *Tracker) Coordinate() Coordinate {
	c := t.client.GetCoordinate()
	return Coordinate{Vector: c.Vec, Error: c.Error, Adjustment: c.Adjustment, Height: c.Height}
}

func (c Coordinate) serf() *coordinate.Coordinate {
	return &coordinate.Coordinate{Vec: slices.Clone(c.Vector), Error: c.Error, Adjustment: c.Adjustment, Height: c.Height}
}

// Valid reports whether the coordinate has Dimensions finite components.
func (c Coordinate) Valid() bool { return len(c.Vector) == Dimensions && c.serf().IsValid() }

// clone returns a copy. It returns nil for a nil or invalid coordinate.
func (c *Coordinate) clone() *Coordinate {
	if c == nil || !c.Valid() {
		return nil
	}
	d := *c
	d.Vector = slices.Clone(c.Vector)
	return &d
}

// predictMaxError is the error of a coordinate at and above which locations predict
// better.
const predictMaxError = 1.0

// predict returns the distance of two coordinates, as DistanceTo of serf does but without
// allocations. relErr is the expected relative error: the larger error of the two
// coordinates.
func predict(a, b *Coordinate) (rtt time.Duration, relErr float64, ok bool) {
	if a == nil || b == nil {
		return 0, 0, false
	}
	relErr = math.Max(a.Error, b.Error)
	if relErr >= predictMaxError {
		return 0, 0, false
	}
	var sum float64
	for i := range a.Vector {
		d := a.Vector[i] - b.Vector[i]
		sum += d * d
	}
	dist := math.Sqrt(sum) + a.Height + b.Height
	if adjusted := dist + a.Adjustment + b.Adjustment; adjusted > 0 {
		dist = adjusted
	}
	return time.Duration(dist * float64(time.Second)), relErr, true
}
