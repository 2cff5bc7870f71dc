package origin

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

// Bounds of origins.
const (
	MaxOrigins = 64
	MaxWeight  = 1000.0
	MinWeight  = 0.001
)

// entries is the number of regions near a client's location at which a path may begin.
// There is more than one, because the nearest region may be disconnected.
const entries = 3

// Errors of a choice. The text of an error says which part is invalid.
var (
	ErrOrigin = errors.New("invalid origin")
	ErrClient = errors.New("invalid client")
)

// Origin is a region that can serve a domain.
type Origin struct {
	Region string
	// Weight is the preference for the origin, MinWeight..MaxWeight; 0 means 1. A weight
	// of 2 halves the cost of the origin.
	Weight float64
	// Drained: the origin gets no clients for now.
	Drained bool
}

func (o Origin) weight() float64 { return cmp.Or(o.Weight, 1) }

// Client says where a client is: in a region, or at a location on the map. Exactly one of
// the two is set.
type Client struct {
	Region   string
	Location *topology.Location
}

// Policy says how an origin is chosen. The zero value chooses the nearest origin by
// latency alone.
type Policy struct {
	// Paths are the options of the paths; K is ignored.
	Paths topology.PathOptions
	// MinRelayGain is the least gain of a relay, as a share of the direct path's cost
	// (0..1). It applies if the direct path has the same source and state. 0 means
	// topology.DefaultMinGain.
	MinRelayGain float64
	// MaxRTT refuses origins that may be further away; 0 = no limit. Predictions and
	// estimates count with the upper end of their error.
	MaxRTT time.Duration
	// NoGuesses refuses paths that were not measured. The leg from a client on the map to
	// the first region is always an estimate, and is not refused.
	NoGuesses bool
	// Current is the present origin of the client; empty = none. The client stays there
	// unless another origin is enough of an improvement (topology.ImprovesEnough).
	Current string
}

// Candidate is an origin as seen from the client.
type Candidate struct {
	Origin
	// Distance is the direct distance between client and origin, in the worse
	// direction.
	Distance topology.Distance
	// Access is the leg from a client's location to Path's first region.
	Access topology.Distance
	// Path is the path to the origin. It has no regions if Refused.
	Path topology.Path
	// Cost is the round trip of the access leg and the path plus the cost of load and
	// links. Predictions and estimates count with the upper end of their error.
	Cost time.Duration
	// Score is Cost divided by the weight. The lowest score wins.
	Score time.Duration
	// Refused: the origin cannot or must not serve this client.
	Refused bool
	// Why explains the candidate's rank.
	Why string
}

// Choice is the origin that serves a client.
type Choice struct {
	// Candidate is the chosen origin. If no origin can serve the client, its Region is
	// empty and Why gives the reason.
	Candidate
	// Others are the other candidates in the order of preference. Refused candidates come
	// last, sorted by name.
	Others []Candidate
}

// Choose returns the origin that serves a client best, with the path. Equally good origins
// are ordered by name. If no origin can serve the client, that is no error, and the choice
// has a reason for each origin. Errors are ErrOrigin, ErrTooMany, ErrClient,
// topology.ErrWeights, and topology.ErrUnknownRegion if the client's region is unknown.
func Choose(r *topology.Router, c Client, origins []Origin, p Policy) (Choice, error) {
	if err := checkOrigins(origins); err != nil {
		return Choice{}, err
	}
	starts, err := starts(r, c)
	if err != nil {
		return Choice{}, err
	}
	if p.MinRelayGain == 0 {
		p.MinRelayGain = topology.DefaultMinGain
	}
	all := make([]Candidate, 0, len(origins))
	for _, o := range origins {
		candidate, err := evaluate(r, c, starts, o, p)
		if err != nil {
			return Choice{}, err
		}
		all = append(all, candidate)
	}
	slices.SortFunc(all, compare)
	return choose(all, p), nil
}

func compare(a, b Candidate) int {
	if a.Refused != b.Refused {
		if a.Refused {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(a.Score, b.Score), cmp.Compare(a.Cost, b.Cost), cmp.Compare(a.Region, b.Region))
}

// choose selects the first of the sorted candidates, or the current origin if the first is
// not enough of an improvement.
func choose(all []Candidate, p Policy) Choice {
	if all[0].Refused {
		return Choice{Candidate: Candidate{Why: "no origin can serve"}, Others: all}
	}
	at, kept := 0, ""
	if i := slices.IndexFunc(all, func(c Candidate) bool { return c.Region == p.Current && !c.Refused }); i > 0 {
		if !topology.ImprovesEnough(all[i].Score, all[0].Score) {
			at, kept = i, fmt.Sprintf("kept: %s would gain only %s; ", all[0].Region, round(all[i].Score-all[0].Score))
		}
	}
	chosen := all[at]
	others := slices.Delete(slices.Clone(all), at, at+1)
	for i := range others {
		switch o := &others[i]; {
		case o.Refused:
		case o.Score < chosen.Score:
			o.Why = fmt.Sprintf("%s nearer, not worth moving: %s", round(chosen.Score-o.Score), o.Why)
		default:
			o.Why = fmt.Sprintf("%s further: %s", round(o.Score-chosen.Score), o.Why)
		}
	}
	chosen.Why = kept + chosen.Why
	return Choice{Candidate: chosen, Others: others}
}

// start is a region in which a path may begin.
type start struct {
	region string
	access topology.Distance
	// upper is the access leg at the upper end of its error.
	upper time.Duration
}

// enters returns a text that says in which region the path of a client on the map begins,
// and how far away that region is. It is empty for a client in a region.
func (s start) enters() string {
	switch {
	case s.upper == 0:
		return ""
	case s.access.RTT >= s.upper: // true at p90 and p99, where RTT is the upper end already
		return fmt.Sprintf("enters at %s, at most %s (%s) away; ", s.region, round(s.upper), s.access.Source)
	}
	return fmt.Sprintf("enters at %s, %s (%s, up to %s) away; ", s.region, round(s.access.RTT), s.access.Source, round(s.upper))
}

func starts(r *topology.Router, c Client) ([]start, error) {
	v := r.View()
	switch {
	case (c.Region == "") == (c.Location == nil):
		return nil, fmt.Errorf("%w: give a region or a location, not both or none", ErrClient)
	case c.Location == nil:
		if _, known := v.Region(c.Region); !known {
			return nil, fmt.Errorf("client in %q: %w", c.Region, topology.ErrUnknownRegion)
		}
		return []start{{region: c.Region}}, nil
	case !c.Location.Valid():
		return nil, fmt.Errorf("%w: latitude must be -90..90 and longitude -180..180", ErrClient)
	}
	var all []start
	for _, n := range v.NearestToLocation(*c.Location, entries, r.Percentile()) {
		if n.Distance.Known() {
			upper := v.DistanceToLocation(n.Region, *c.Location, 99)
			all = append(all, start{n.Region, n.Distance, upper.RTT})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: no region has a location to compare with", ErrClient)
	}
	return all, nil
}

// evaluate finds the best path to one origin, or the reason why there is none.
func evaluate(r *topology.Router, c Client, starts []start, o Origin, p Policy) (Candidate, error) {
	v := r.View()
	out := Candidate{Origin: o, Refused: true}
	if c.Location != nil {
		out.Distance = v.DistanceToLocation(o.Region, *c.Location, r.Percentile())
	} else {
		out.Distance = v.Distance(c.Region, o.Region, r.Percentile())
	}
	if _, known := v.Region(o.Region); !known {
		out.Why = "is not a region of the topology"
		return out, nil
	}
	if o.Drained {
		out.Why = "is drained"
		return out, nil
	}
	guessed, far := refusal{}, refusal{}
	for _, s := range starts {
		path, why, err := way(r, s.region, o.Region, p)
		if err != nil {
			return out, err
		}
		upper, cost := s.upper+path.Upper, s.upper+costOf(path)
		score := time.Duration(min(float64(cost)/o.weight(), float64(1<<62)))
		switch {
		case len(path.Regions) == 0:
		case p.NoGuesses && path.Source != topology.Measured:
			guessed.least(upper, fmt.Sprintf("is only %s: %s%s", path.Source, s.enters(), path))
		case p.MaxRTT > 0 && upper > p.MaxRTT:
			far.least(upper, fmt.Sprintf("is beyond %s: %s%s", p.MaxRTT, s.enters(), path))
		case out.Refused || score < out.Score:
			out.Refused, out.Path, out.Access, out.Cost, out.Score = false, path, s.access, cost, score
			out.Why = s.enters() + why
		}
	}
	if out.Refused {
		out.Why = cmp.Or(far.why, guessed.why, nowhere(starts, out.Distance))
	} else if o.weight() != 1 {
		out.Why += fmt.Sprintf("; weight %g makes %s of %s", o.weight(), round(out.Score), round(out.Cost))
	}
	return out, nil
}

// refusal is the shortest refused path, and the reason why it was refused. The shortest
// path helps the reader most.
type refusal struct {
	rtt time.Duration
	why string
}

func (r *refusal) least(rtt time.Duration, why string) {
	if r.why == "" || rtt < r.rtt {
		*r = refusal{rtt, why}
	}
}

// nowhere explains why no path was found.
func nowhere(starts []start, direct topology.Distance) string {
	var from []string
	for _, s := range starts {
		from = append(from, s.region)
	}
	if direct.State == topology.Unreachable {
		return fmt.Sprintf("is unreachable from %s, and no relay helps", strings.Join(from, ", "))
	}
	return fmt.Sprintf("no path from %s is known, and none can be predicted or estimated", strings.Join(from, ", "))
}

// way returns the best path between two regions, and a text that explains the path. It is
// the direct path unless a relay gains enough. If there is no path, the result has no
// regions.
func way(r *topology.Router, from, to string, p Policy) (topology.Path, string, error) {
	o := p.Paths
	o.K = 1
	paths, err := r.Paths(from, to, o)
	if err != nil || len(paths) == 0 {
		return topology.Path{}, "", err
	}
	best := paths[0]
	if len(best.Regions) == 1 {
		return best, "is in the same region", nil
	}
	if len(best.Relays()) == 0 {
		return best, "directly " + best.String(), nil
	}
	o.MaxRelays = topology.NoRelays
	paths, err = r.Paths(from, to, o)
	if err != nil {
		return topology.Path{}, "", err
	}
	if len(paths) == 0 {
		return best, "by relay, there is no direct way: " + best.String(), nil
	}
	direct := paths[0]
	switch {
	case direct.Source != best.Source:
		return best, fmt.Sprintf("by relay, the direct way is only %s: %s", direct.Source, best), nil
	case direct.State != best.State: // paths with a better state come first, so best has the better state
		return best, fmt.Sprintf("by relay, the direct way is %s: %s", direct.State, best), nil
	}
	if float64(costOf(best)) >= (1-p.MinRelayGain)*float64(costOf(direct)) {
		return direct, fmt.Sprintf("directly %s; relays bring under %.0f%%", direct, p.MinRelayGain*100), nil
	}
	return best, fmt.Sprintf("by relay %s instead of %s", best, round(direct.RTT)), nil
}

// costOf returns the cost of a path. Predictions and estimates count with the upper end of
// their error, so that an optimistic guess does not win against a measurement.
func costOf(p topology.Path) time.Duration { return p.Upper + p.Cost.Total() - p.Cost.RTT }

func checkOrigins(origins []Origin) error {
	if len(origins) == 0 {
		return fmt.Errorf("%w: none is given", ErrOrigin)
	}
	if len(origins) > MaxOrigins {
		return fmt.Errorf("%w: %d origins, at most %d", ErrTooMany, len(origins), MaxOrigins)
	}
	seen := make(map[string]bool, len(origins))
	for i, o := range origins {
		switch {
		case o.Region == "":
			return fmt.Errorf("%w %d: names no region", ErrOrigin, i+1)
		case seen[o.Region]:
			return fmt.Errorf("%w %q: comes twice", ErrOrigin, o.Region)
		case !(o.Weight == 0 || o.Weight >= MinWeight && o.Weight <= MaxWeight):
			return fmt.Errorf("%w %q: weight %v: must be 0 (for 1) or %v..%v", ErrOrigin, o.Region, o.Weight, MinWeight, MaxWeight)
		}
		seen[o.Region] = true
	}
	return nil
}

// String prints the chosen origin with its path and reason, and a line for each other
// origin.
func (c Choice) String() string {
	var b strings.Builder
	if c.Region == "" {
		b.WriteString(c.Why + "\n")
	} else {
		fmt.Fprintf(&b, "%s: %s\n", c.Region, c.Why)
	}
	for _, o := range c.Others {
		word := "not"
		if !o.Refused {
			word = "then"
		}
		fmt.Fprintf(&b, "  %s %s: %s\n", word, o.Region, o.Why)
	}
	return b.String()
}

// round rounds to tenths of a millisecond.
func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
