package uplink

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/sets"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// latencyEvery is how often changed edges are sent. refreshEdge is how often unchanged
	// edges are confirmed, so that their age stays correct. To a server of an earlier
	// version they are sent again instead.
	latencyEvery = 5 * time.Second
	refreshEdge  = 30 * time.Second
	// confirmWithin bounds the age of edges that one message confirms without repeating
	// them. An older edge is listed as not confirmed.
	confirmWithin = 45 * time.Second
	// wholeRowEvery is how often the whole row is sent, in case the two ends differ.
	wholeRowEvery = 10 * time.Minute
	// A coordinate is sent when the round trips that it predicts may have changed by
	// movedBy seconds, or when its error has changed by errorBy.
	movedBy = 0.001
	errorBy = 0.05
	// A percentile is sent when it differs from the one that was sent by more than bandLeast and by
	// more than the share bandShare.
	bandLeast = time.Millisecond
	bandShare = 0.1
	// The first samples of an edge may be far off. So an edge with twice the samples is sent when its
	// median differs by more than certainLeast and by more than the share certainShare. The same
	// applies to an edge with half the samples, because the earlier ones no longer count.
	certainLeast = 100 * time.Microsecond
	certainShare = 0.02
)

// sentRow is the part of this region's row that the global tier has. It outlasts sessions.
type sentRow struct {
	epoch    string
	sequence uint64
	// edges holds an Unknown edge for an edge that was sent but is no longer measured. The
	// global tier has the old edge until the whole row is sent.
	edges                map[string]topology.Edge
	coordinate           *nusav1.Coordinate
	confirmedAt, wholeAt time.Time
}

// resume forgets what was sent, unless the server has all of it.
func (r *sentRow) resume(at *nusav1.Position) {
	if r.edges == nil || at.GetEpoch() != r.epoch || at.GetSequence() != r.sequence {
		r.edges, r.coordinate = nil, nil
	}
}

// changes returns the changes of a row to be sent, or nil for none.
func (r *sentRow) changes(now time.Time, row []topology.Edge, at *nusav1.Coordinate) *nusav1.RowChanges {
	out := &nusav1.RowChanges{Full: r.edges == nil || now.Sub(r.wholeAt) >= wholeRowEvery}
	confirm := out.Full || now.Sub(r.confirmedAt) >= refreshEdge
	if out.Full {
		r.edges, r.wholeAt = make(map[string]topology.Edge, len(row)), now
	}
	var changed []topology.Edge
	var age time.Duration
	var except []string
	same := 0
	present := make(map[string]bool, len(row))
	for _, e := range row {
		if e.State == topology.Unknown {
			continue
		}
		present[e.To] = true
		was, sent := r.edges[e.To]
		switch {
		case !sent || noticeable(was, e):
			r.edges[e.To] = e
			changed = append(changed, e)
		case e.State == topology.OK && e.Age > confirmWithin:
			except = append(except, e.To)
		case e.State == topology.OK:
			age = max(age, e.Age)
			same++
		}
	}
	for to := range r.edges {
		if !present[to] {
			r.edges[to] = topology.Edge{To: to} // the edge is sent again once it is measured
			except = append(except, to)
		}
	}
	if len(changed) > 0 {
		out.Edges = sets.PackRow(changed)
	}
	if confirm {
		r.confirmedAt = now
		if same > 0 {
			slices.Sort(except)
			out.Confirmed, out.Unconfirmed = durationpb.New(age), except
		}
	}
	if sets.Moved(r.coordinate, at, movedBy, errorBy) {
		r.coordinate, out.Coordinate = at, at
	}
	if !out.GetFull() && len(changed) == 0 && out.GetConfirmed() == nil && out.GetCoordinate() == nil {
		return nil
	}
	r.sequence++
	out.Position = &nusav1.Position{Epoch: r.epoch, Sequence: r.sequence}
	return out
}

// coordinate returns the region's coordinate for a hello. It is the coordinate that was
// sent last, unless the region has moved since.
func (u *Uplink) coordinate() *nusav1.Coordinate {
	at := topo.CoordinateToProto(u.cfg.Prober.Coordinate())
	if last := u.row.coordinate; last != nil && !sets.Moved(last, at, movedBy, errorBy) {
		return last
	}
	return at
}

// noticeable reports whether an edge changed enough to be sent. These changes are enough:
// another state, source or method, other reachability in the reverse direction, a
// percentile beyond its band, a median that differs with twice or half the samples, or a loss
// that differs by more than a percentage point.
func noticeable(was, is topology.Edge) bool {
	return was.State != is.State || was.ReverseReachable != is.ReverseReachable || was.Source != is.Source || was.Method != is.Method ||
		differs(was.P50, is.P50, bandLeast, bandShare) || differs(was.P90, is.P90, bandLeast, bandShare) || differs(was.P99, is.P99, bandLeast, bandShare) ||
		resampled(was.Samples, is.Samples) && differs(was.P50, is.P50, certainLeast, certainShare) ||
		max(was.Loss-is.Loss, is.Loss-was.Loss) > 0.01
}

// resampled reports whether a number of samples is at least twice the former, or at most half of it.
func resampled(was, is int) bool { return is != was && (is >= 2*was || 2*is <= was) }

// differs reports whether two round trips differ by more than least and by more than a share of
// the first.
func differs(was, is, least time.Duration, share float64) bool {
	d := (is - was).Abs()
	return d > least && float64(d) > share*float64(was)
}
