package origins

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
	"github.com/nusa-scheduler/nusa/topology/origin"
)

// MaxRecords and MaxBytes bound all records of a federation, because one message holds
// them.
const (
	MaxRecords = 1000
	MaxBytes   = 1 << 20
)

// ErrTooMany: the records exceed MaxRecords or MaxBytes.
var ErrTooMany = errors.New("too many origin records")

// CanonicalRecord returns a record in canonical form, without its revision. The error is
// INVALID_ARGUMENT with a problem for each fault. known reports whether a region exists;
// if it does not, known returns the regions that exist. With a nil known, regions are not
// checked.
func CanonicalRecord(rec *nusav1.OriginRecord, known func(region string) (bool, []string)) (*nusav1.OriginRecord, error) {
	var problems []*nusav1.Problem
	var errs job.Errors
	if err := job.ValidateOrigins(rec); errors.As(err, &errs) {
		for _, p := range errs.Proto() {
			p.Field = "record." + p.GetField()
			problems = append(problems, p)
		}
	}
	for i, o := range rec.GetOrigins()[:min(len(rec.GetOrigins()), origin.MaxOrigins)] {
		if known == nil || o.GetRegion() == "" {
			continue
		}
		if there, all := known(o.GetRegion()); !there {
			problems = append(problems, &nusav1.Problem{
				Field: fmt.Sprintf("record.origins[%d].region", i), Message: fmt.Sprintf("there is no region %q; there are %s", clip(o.GetRegion()), topo.ListNames(all)),
			})
		}
	}
	if len(problems) > 0 {
		return nil, rpcerr.Invalid(problems...)
	}
	out := proto.CloneOf(rec)
	out.Revision = 0
	var err error
	if out.Domain, err = origin.ParsePattern(out.GetDomain()); err != nil {
		return nil, invalid("record.domain", err)
	}
	return out, nil
}

func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), 63)], "") }

func originsFromProto(rec *nusav1.OriginRecord) []origin.Origin {
	out := make([]origin.Origin, 0, len(rec.GetOrigins()))
	for _, o := range rec.GetOrigins() {
		out = append(out, origin.Origin{Region: o.GetRegion(), Weight: o.GetWeight(), Drained: o.GetDrained()})
	}
	return out
}

// Table is an immutable set of records, safe for concurrent use. A nil table is empty.
type Table struct {
	table   *origin.Table
	records map[string]*nusav1.OriginRecord
}

// NewTable returns a table of records in canonical form. The table retains the records.
// Errors are ErrTooMany and the errors of origin.NewTable.
func NewTable(records []*nusav1.OriginRecord) (*Table, error) {
	if err := CheckLimits(slices.Values(records)); err != nil {
		return nil, err
	}
	t := &Table{records: make(map[string]*nusav1.OriginRecord, len(records))}
	all := make([]origin.Record, 0, len(records))
	for _, r := range records {
		all = append(all, origin.Record{Pattern: r.GetDomain(), Origins: originsFromProto(r)})
		t.records[r.GetDomain()] = r
	}
	var err error
	if t.table, err = origin.NewTable(all); err != nil {
		return nil, fmt.Errorf("origin records: %w", err)
	}
	return t, nil
}

// CheckLimits returns ErrTooMany if the records exceed MaxRecords or MaxBytes.
func CheckLimits(records func(yield func(*nusav1.OriginRecord) bool)) error {
	n, size := 0, 0
	for r := range records {
		n++
		size += proto.Size(r) + 4 // the tag and the length of the record in a message
	}
	if n > MaxRecords || size > MaxBytes {
		return fmt.Errorf("%w: %d of %d bytes together; at most %d of %d bytes", ErrTooMany, n, size, MaxRecords, MaxBytes)
	}
	return nil
}

// Records returns every record, by domain. The caller must not change them.
func (t *Table) Records() []*nusav1.OriginRecord {
	if t == nil {
		return nil
	}
	out := make([]*nusav1.OriginRecord, 0, len(t.records))
	for _, domain := range slices.Sorted(maps.Keys(t.records)) {
		out = append(out, t.records[domain])
	}
	return out
}

// Match returns the most specific record that covers a domain. It returns nil if no record
// does, or if the text is not a domain.
func (t *Table) Match(domain string) *nusav1.OriginRecord {
	rec, _ := t.match(domain)
	return rec
}

func (t *Table) match(domain string) (*nusav1.OriginRecord, error) {
	if t == nil {
		if _, err := origin.ParseDomain(domain); err != nil {
			return nil, err
		}
		return nil, origin.ErrNoRecord
	}
	found, err := t.table.Match(domain)
	if err != nil {
		return nil, err
	}
	return t.records[found.Pattern], nil
}

// ServingRegions returns the regions of a domain's record that are not drained, in the
// order of the record. It returns nil if no record covers the domain.
func (t *Table) ServingRegions(domain string) []string {
	var out []string
	for _, o := range t.Match(domain).GetOrigins() {
		if !o.GetDrained() {
			out = append(out, o.GetRegion())
		}
	}
	return out
}

// Resolve returns the origin that serves a client. router returns the router of the
// present view at a percentile. Errors are gRPC statuses: NOT_FOUND if no record covers
// the domain, and INVALID_ARGUMENT if the request is invalid.
func (t *Table) Resolve(req *nusav1.ResolveOriginRequest, router func(topology.Percentile) *topology.Router) (*nusav1.ResolveOriginResponse, error) {
	rec, err := t.match(req.GetDomain())
	switch {
	case errors.Is(err, origin.ErrNoRecord):
		return nil, status.Errorf(codes.NotFound, "no origin record covers %q: `nusa origin list` shows them", req.GetDomain())
	case err != nil:
		return nil, invalid("domain", err)
	}
	client := origin.Client{Region: req.GetRegion()}
	if l := req.GetLocation(); l != nil {
		client.Location = &topology.Location{Latitude: l.GetLatitude(), Longitude: l.GetLongitude(), Name: l.GetName()}
	}
	p := rec.GetPolicy()
	r := router(topology.Percentile(p.GetPercentile()))
	choice, err := origin.Choose(r, client, originsFromProto(rec), origin.Policy{
		Paths:        topology.PathOptions{MaxRelays: int(p.GetMaxRelays())},
		MinRelayGain: p.GetMinRelayGain(), MaxRTT: p.GetMaxRtt().AsDuration(), NoGuesses: p.GetNoGuesses(), Current: req.GetCurrent(),
	})
	if err != nil {
		field := "region"
		if client.Region == "" && client.Location != nil {
			field = "location"
		}
		return nil, invalid(field, err) // the record is valid, so the error is about the client
	}
	out := &nusav1.ResolveOriginResponse{Record: rec.GetDomain(), Choice: choiceToProto(choice.Candidate, rec, client)}
	for _, o := range choice.Others {
		out.Others = append(out.Others, choiceToProto(o, rec, client))
	}
	return out, nil
}

func invalid(field string, err error) error {
	return rpcerr.Invalid(&nusav1.Problem{Field: field, Message: err.Error()})
}

func choiceToProto(c origin.Candidate, rec *nusav1.OriginRecord, client origin.Client) *nusav1.OriginChoice {
	out := &nusav1.OriginChoice{Region: c.Region, Weight: c.Weight, Why: c.Why, Refused: c.Refused || c.Region == ""}
	for _, o := range rec.GetOrigins() {
		if o.GetRegion() == c.Region {
			out.Address = o.GetAddress()
		}
	}
	if out.Refused {
		return out
	}
	out.Path = pathOf(c.Path)
	out.Cost, out.Score = durationpb.New(c.Cost), durationpb.New(c.Score)
	if client.Location != nil {
		out.Access = &nusav1.NearRegion{
			Region: c.Path.Regions[0], Rtt: durationpb.New(c.Access.RTT),
			Source: nusav1.RTTSource(c.Access.Source), State: nusav1.EdgeState(c.Access.State),
		}
	}
	return out
}

func pathOf(p topology.Path) *nusav1.Path {
	return &nusav1.Path{
		Regions: p.Regions, Rtt: durationpb.New(p.RTT), Source: nusav1.RTTSource(p.Source),
		Upper: durationpb.New(p.Upper), State: nusav1.EdgeState(p.State), NoLoad: p.UnknownLoad,
		Cost: durationpb.New(p.Cost.Total()), CostRtt: durationpb.New(p.Cost.RTT),
		CostCpu: durationpb.New(p.Cost.CPU), CostQueue: durationpb.New(p.Cost.Queue),
	}
}
