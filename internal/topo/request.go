package topo

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/suggest"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// Bounds of requests.
const (
	// MaxRegions bounds the regions of a federation, and so a list of near regions.
	MaxRegions = 2048
	// maxName bounds the names of regions, nodes and pools, in bytes.
	maxName = 253
	// MaxPoints and maxFields bound the points and fields of a history response. maxToken
	// bounds the token of a watch, in bytes.
	MaxPoints = 2000
	maxFields = 64
	maxToken  = 128
)

func invalid(field, format string, args ...any) error {
	return rpcerr.Invalid(&nusav1.Problem{Field: field, Message: fmt.Sprintf(format, args...)})
}

// maxListed bounds the names in one error message.
const maxListed = 10

// ListNames lists at most ten names in a text, and the number of the other names.
func ListNames(names []string) string {
	return cmp.Or(suggest.List(names, maxListed), "none yet")
}

// ParsePercentile reads a percentile: 50, 90 or 99; 0 means 50.
func ParsePercentile(p int32) (topology.Percentile, error) {
	switch p {
	case 0:
		return 50, nil
	case 50, 90, 99:
		return topology.Percentile(p), nil
	}
	return 0, invalid("percentile", "%d: must be 50, 90 or 99; leave it out for 50", p)
}

// ParsePathRequest reads a request for paths. The caller checks that both regions exist,
// and adds the loads of regions.
func ParsePathRequest(req *nusav1.PathRequest) (topology.Percentile, topology.PathOptions, error) {
	o := topology.PathOptions{K: int(req.GetK()), MaxRelays: int(req.GetMaxRelays())}
	p, err := ParsePercentile(req.GetPercentile())
	switch {
	case err != nil:
		return 0, o, err
	case o.K < 0 || o.K > topology.MaxPaths:
		return 0, o, invalid("k", "%d: must be 1..%d; leave it out for 1", o.K, topology.MaxPaths)
	case o.MaxRelays < topology.NoRelays || o.MaxRelays > topology.MaxRelays:
		return 0, o, invalid("max_relays", "%d: must be 1..%d, or %d for none; leave it out for %d",
			o.MaxRelays, topology.MaxRelays, topology.NoRelays, topology.DefaultRelays)
	}
	if o.Weights.CPU, err = weight("weights.cpu", req.GetWeights().GetCpu()); err != nil {
		return 0, o, err
	}
	o.Weights.Queue, err = weight("weights.queue", req.GetWeights().GetQueue())
	return p, o, err
}

func weight(field string, d *durationpb.Duration) (time.Duration, error) {
	w := d.AsDuration()
	if d.CheckValid() != nil && d != nil || w < 0 || w > topology.MaxWeight {
		return 0, invalid(field, "must be 0s..%s; leave it out to count nothing", topology.MaxWeight)
	}
	return w, nil
}

// NearestQuery selects the regions near a region or, if Region is "", near a location.
type NearestQuery struct {
	Region     string
	Location   *topology.Location
	Limit      int // 0 = all
	Percentile topology.Percentile
}

// ParseNearestRequest reads a request for near regions. If the request has neither a
// region nor a location, it means the region home; "" = none. The caller checks that the
// region exists.
func ParseNearestRequest(req *nusav1.NearestRequest, home string) (NearestQuery, error) {
	q := NearestQuery{Region: req.GetRegion(), Location: LocationFromProto(req.GetLocation()), Limit: int(req.GetLimit())}
	if q.Region == "" && q.Location == nil {
		q.Region = home
	}
	var err error
	q.Percentile, err = ParsePercentile(req.GetPercentile())
	switch {
	case err != nil:
		return q, err
	case q.Limit < 0 || q.Limit > MaxRegions:
		return q, invalid("limit", "%d: must be 1..%d; leave it out for all", q.Limit, MaxRegions)
	case (q.Region == "") == (q.Location == nil):
		return q, invalid("region", "is missing: give a region or a location")
	case q.Location != nil && !q.Location.Valid():
		return q, invalid("location", "latitude must be -90..90 and longitude -180..180")
	}
	return q, nil
}

// Run runs the query on a view, which must have the region of the query.
func (q NearestQuery) Run(v *topology.View) []topology.Neighbour {
	if q.Region == "" {
		return v.NearestToLocation(*q.Location, q.Limit, q.Percentile)
	}
	return v.Nearest(q.Region, q.Limit, q.Percentile)
}

// ParseCheckRequest reads a request for a check of the topology.
func ParseCheckRequest(req *nusav1.CheckTopologyRequest) (topology.CheckOptions, error) {
	p, err := ParsePercentile(req.GetPercentile())
	o := topology.CheckOptions{Percentile: p, MinGain: req.GetMinGain(), Limit: int(req.GetLimit())}
	switch {
	case err != nil:
		return o, err
	case !(o.MinGain >= 0 && o.MinGain < 1):
		return o, invalid("min_gain", "%v: must be a share, at least 0 and below 1; leave it out for %v", o.MinGain, topology.DefaultMinGain)
	case o.Limit < 0 || o.Limit > topology.MaxFindings:
		return o, invalid("limit", "%d: must be 1..%d; leave it out for 20", o.Limit, topology.MaxFindings)
	}
	return o, nil
}

// ValidateToken returns an error if the text is too long for the token of a watch.
func ValidateToken(token string) error {
	if len(token) > maxToken {
		return invalid("token", "is not a token of this server: leave it out to start from the beginning")
	}
	return nil
}

// ValidateMatrixRequest checks the fields of a request for edges. The caller checks that
// the region exists.
func ValidateMatrixRequest(req *nusav1.MatrixRequest) error {
	if len(req.GetAfter()) > maxName {
		return invalid("after", "must be the next of a response")
	}
	return ValidateToken(req.GetToken())
}

// HistoryRange is the time range of a request for history. With a Step of 0 the
// server chooses.
type HistoryRange struct {
	From, To time.Time
	Step     time.Duration
}

// ParseHistoryRequest reads the time range of a request for history. The default of `from`
// is one hour before `to`, and the default of `to` is now. The caller finds the region
// that has the series, and checks the names of the fields.
func ParseHistoryRequest(req *nusav1.HistoryRequest, now time.Time) (HistoryRange, error) {
	from, to, step := req.GetFrom(), req.GetTo(), req.GetStep()
	none := HistoryRange{}
	switch {
	case !slices.Contains([]string{"edge", "node", "pool"}, req.GetKind()):
		return none, invalid("kind", "%.32q: must be edge, node or pool", req.GetKind())
	case len(req.GetRegion()) > maxName:
		return none, invalid("region", "must be the name of a region")
	case len(req.GetKey()) > maxName:
		return none, invalid("key", "must be at most %d bytes: a region, a node or a pool", maxName)
	case len(req.GetFields()) > maxFields:
		return none, invalid("fields", "%d of them: at most %d; leave them out for all", len(req.GetFields()), maxFields)
	case from != nil && from.CheckValid() != nil:
		return none, invalid("from", "is not a time")
	case to != nil && to.CheckValid() != nil:
		return none, invalid("to", "is not a time")
	case step != nil && (step.CheckValid() != nil || step.AsDuration() < 0):
		return none, invalid("step", "must not be negative; leave it out for the finest with at most 300 points")
	case req.GetTrend() && req.GetKind() == "edge":
		return none, invalid("trend", "is for nodes and pools only: leave it out")
	}
	q := HistoryRange{To: now, Step: step.AsDuration()}
	if to != nil {
		q.To = to.AsTime()
	}
	q.From = q.To.Add(-time.Hour)
	if from != nil {
		q.From = from.AsTime()
	}
	switch {
	case !q.From.Before(q.To):
		return none, invalid("from", "must be before to, %s", q.To.UTC().Format(time.RFC3339))
	case q.Step > 0 && q.To.Sub(q.From)/q.Step > MaxPoints:
		return none, invalid("step", "%s makes more than %d points; take a longer one or a shorter time", q.Step, MaxPoints)
	}
	return q, nil
}
