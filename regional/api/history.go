package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/series"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/metrics"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
)

const (
	// maxHistorySeries bounds the series in a response.
	maxHistorySeries = 256
	// maxHistoryPoints bounds the values in a response over all series and fields. A value
	// takes 26 bytes, so the response has at most 5 MB.
	maxHistoryPoints = 200_000
	// historyRetention is how far back a query may begin. It is a little longer than the
	// store retains values.
	historyRetention = 32 * 24 * time.Hour
)

// trendLimits lists, for each kind, the fields that have a limit. The limit of a field is
// the sum of the latest values of the fields in its list.
var trendLimits = map[string][]struct {
	field string
	limit []string
}{
	metrics.KindNode: {
		{"memory_used", []string{"memory_used", "memory_available"}},
		{"disk_used", []string{"disk_total"}},
	},
	metrics.KindPool: {
		{"memory_used", []string{"memory_total"}},
		{"disk_used", []string{"disk_total"}},
		{"allocated_cpu", []string{"capacity_cpu"}},
		{"allocated_memory", []string{"capacity_memory"}},
	},
}

// historyQuery is a validated request.
type historyQuery struct {
	topo.HistoryRange
	fields []string // the requested fields, or all fields of the kind
}

// History returns the values that this server measured while it was the master.
func (t topologies) History(ctx context.Context, req *nusav1.HistoryRequest) (*nusav1.HistoryResponse, error) {
	if _, err := t.s.master(); err != nil {
		return nil, err
	}
	region := t.s.region()
	if r := req.GetRegion(); r != "" && r != region {
		return nil, notFound(rpcerr.KindRegion, r, "this is region %q, it has no history of region %q: ask a server of that region, or a global server", region, r)
	}
	q, err := parseHistory(req, time.Now())
	if err != nil {
		return nil, err
	}
	store, why := t.s.History()
	if store == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "no history here: %s", why)
	}
	keys, err := t.historyKeys(store, req)
	if err != nil {
		return nil, err
	}
	out := &nusav1.HistoryResponse{}
	if total := len(keys); total > maxHistorySeries {
		keys = keys[:maxHistorySeries]
		out.Errors = append(out.Errors, &nusav1.PartialError{Region: region,
			Message: fmt.Sprintf("only %d of %d series are returned: ask for one by its key", maxHistorySeries, total)})
	}
	q.fit(len(keys))
	view := t.s.State.View()
	var packed []series.Series
	for _, key := range keys {
		if ctx.Err() != nil {
			return nil, raftlog.StatusError(ctx.Err())
		}
		one, err := store.Query(req.GetKind(), key, q.From, q.To, q.Step)
		switch {
		case errors.Is(err, series.ErrUnknown) && req.GetKey() == "":
			continue // the series was removed after its key was listed
		case errors.Is(err, series.ErrUnknown):
			if req.GetKind() == metrics.KindEdge {
				if _, _, errView := t.view(key); errView != nil {
					return nil, errView
				}
			}
			return nil, status.Errorf(codes.NotFound, "no history of %s %q in region %q", req.GetKind(), req.GetKey(), region)
		case err != nil:
			return nil, status.Errorf(codes.Unavailable, "history cannot be read: %v", err)
		}
		if req.GetPacked() {
			packed = append(packed, one)
			continue
		}
		w := historyToProto(&one, q.fields)
		w.Region = region
		if n, found := view.Node(key); found && req.GetKind() == metrics.KindNode {
			w.Name = n.Name
		}
		if req.GetTrend() {
			w.Trends = historyTrends(&one)
		}
		out.Series = append(out.Series, w)
	}
	if req.GetPacked() {
		out.Block = topo.Pack(packed, q.fields)
	}
	return out, nil
}

// parseHistory validates a request and fills in the defaults.
func parseHistory(req *nusav1.HistoryRequest, now time.Time) (historyQuery, error) {
	span, err := topo.ParseHistoryRequest(req, now)
	if err != nil {
		return historyQuery{}, err
	}
	if req.GetPacked() && (req.GetKind() != metrics.KindEdge || req.GetTrend()) {
		return historyQuery{}, rpcerr.Invalid(&nusav1.Problem{Field: "packed", Message: "is for edges only, and not together with trend"})
	}
	q := historyQuery{HistoryRange: span, fields: req.GetFields()}
	i := slices.IndexFunc(metrics.Kinds, func(k series.Kind) bool { return k.Name == req.GetKind() })
	all := metrics.Kinds[i].Fields
	for _, f := range q.fields {
		if !slices.Contains(all, f) {
			return q, rpcerr.Invalid(&nusav1.Problem{Field: "fields", Message: fmt.Sprintf("a %s has no %q, it has %s", req.GetKind(), f, strings.Join(all, ", "))})
		}
	}
	if len(q.fields) == 0 {
		q.fields = all
	}
	if oldest := now.Add(-historyRetention); q.From.Before(oldest) {
		q.From = oldest
	}
	if q.To.After(now) {
		q.To = now
	}
	return q, nil
}

// fit widens the step so that the given number of series fits into a response.
func (q *historyQuery) fit(count int) {
	points := maxHistoryPoints / max(count*len(q.fields), 1)
	if span := q.To.Sub(q.From); points < series.MaxPoints && span > 0 {
		// The range may touch two windows more than the number of whole windows in it.
		q.Step = max(q.Step, span/time.Duration(max(points-2, 1)))
	}
}

// historyKeys returns the keys of the requested series.
func (t topologies) historyKeys(store *series.Store, req *nusav1.HistoryRequest) ([]string, error) {
	key := req.GetKey()
	if key == "" {
		return store.Keys(req.GetKind(), ""), nil
	}
	if req.GetKind() != metrics.KindNode {
		return []string{key}, nil
	}
	n, err := findNode(t.s.State.View(), key)
	if err == nil {
		return []string{n.ID}, nil
	}
	if status.Code(err) == codes.NotFound {
		// A removed node may still have series.
		if known := store.Keys(metrics.KindNode, key); len(known) == 1 && (known[0] == key || len(key) >= minPrefix) {
			return known, nil
		}
	}
	return nil, err
}

// historyToProto converts the requested fields of a series. A field that the file does not
// have yet has no values.
func historyToProto(s *series.Series, fields []string) *nusav1.HistorySeries {
	out := &nusav1.HistorySeries{
		Kind: s.Kind, Key: s.Key, Start: timestamppb.New(s.Start),
		Step: durationpb.New(s.Step), Resolution: durationpb.New(s.Resolution),
	}
	for _, name := range fields {
		points := s.Field(name)
		f := &nusav1.HistoryField{
			Name: name, Mean: make([]float64, len(points)), Min: make([]float64, len(points)),
			Max: make([]float64, len(points)), Count: make([]int32, len(points)),
		}
		for i, p := range points {
			if p.Count > 0 {
				f.Mean[i], f.Min[i], f.Max[i], f.Count[i] = p.Mean, p.Min, p.Max, int32(p.Count)
			}
		}
		out.Fields = append(out.Fields, f)
	}
	return out
}

// historyTrends returns when the fields of a series will reach their limits if their trends
// continue.
func historyTrends(s *series.Series) []*nusav1.HistoryTrend {
	var out []*nusav1.HistoryTrend
	for _, r := range trendLimits[s.Kind] {
		w := &nusav1.HistoryTrend{Field: r.field}
		for _, name := range r.limit {
			w.Limit += latest(s.Field(name))
		}
		if !(w.Limit > 0) {
			w.Limit, w.Why = 0, "the limit was not measured"
			out = append(out, w)
			continue
		}
		f := series.FitTrend(s.Start, s.Step, s.Field(r.field)).Reaches(w.Limit)
		w.Known, w.Why = f.Known, f.Why
		if f.Known {
			w.At, w.Earliest = timestamppb.New(f.At), timestamppb.New(f.Earliest)
			if !f.Latest.IsZero() {
				w.Latest = timestamppb.New(f.Latest)
			}
		}
		out = append(out, w)
	}
	return out
}

// latest returns the last measured value, or NaN if there is none.
func latest(points []series.Point) float64 {
	for _, p := range slices.Backward(points) {
		if p.Count > 0 {
			return p.Mean
		}
	}
	return math.NaN()
}
