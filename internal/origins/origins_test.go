package origins

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

func record(domain string, regions ...string) *nusav1.OriginRecord {
	out := &nusav1.OriginRecord{Domain: domain}
	for _, r := range regions {
		out.Origins = append(out.Origins, &nusav1.Origin{Region: r, Address: r + ".example:443"})
	}
	return out
}

func TestRecordsAreCheckedAndCanonical(t *testing.T) {
	known := func(name string) (bool, []string) {
		return name == "sgp" || name == "tyo", []string{"sgp", "tyo"}
	}
	many := record("a.com")
	for i := range 65 {
		many.Origins = append(many.Origins, &nusav1.Origin{Region: fmt.Sprint("r", i)})
	}
	with := func(change func(*nusav1.OriginRecord)) *nusav1.OriginRecord {
		r := record("a.com", "sgp")
		r.Policy = &nusav1.OriginPolicy{}
		change(r)
		return r
	}
	for want, rec := range map[string]*nusav1.OriginRecord{
		"record.domain: ":               record("a..com", "sgp"),
		"record.domain: domain \"1.2":   record("1.2.3.4", "sgp"),
		"record.domain: domain \"a.*.c": record("a.*.com", "sgp"),
		"record.domain: is missing":     nil,
		"record.origins: ":              record("a.com"),
		"is given twice":                record("a.com", "sgp", "sgp"),
		"limit is 64":                   many,
		`origins[1].region: there is no region "mars"; there are sgp, tyo`: record("a.com", "sgp", "mars"),
		"weight: -1":     with(func(r *nusav1.OriginRecord) { r.Origins[0].Weight = -1 }),
		"weight: 1001":   with(func(r *nusav1.OriginRecord) { r.Origins[0].Weight = 1001 }),
		"weight: NaN":    with(func(r *nusav1.OriginRecord) { r.Origins[0].Weight = math.NaN() }),
		"address":        with(func(r *nusav1.OriginRecord) { r.Origins[0].Address = strings.Repeat("x", 254) }),
		"percentile":     with(func(r *nusav1.OriginRecord) { r.Policy.Percentile = 42 }),
		"max_rtt":        with(func(r *nusav1.OriginRecord) { r.Policy.MaxRtt = durationpb.New(-1) }),
		"max_rtt: 2m":    with(func(r *nusav1.OriginRecord) { r.Policy.MaxRtt = durationpb.New(2 * time.Minute) }),
		"max_relays":     with(func(r *nusav1.OriginRecord) { r.Policy.MaxRelays = 7 }),
		"min_relay_gain": with(func(r *nusav1.OriginRecord) { r.Policy.MinRelayGain = math.NaN() }),
	} {
		_, err := CanonicalRecord(rec, known)
		text := ""
		for _, p := range rpcerr.Problems(err) {
			text += rpcerr.ProblemText(p) + "; "
		}
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(text, want) {
			t.Errorf("%v: %v %q, want %q", rec, err, text, want)
		}
	}
	in := record("*.Example.COM.", "sgp", "tyo")
	in.Revision = 7
	got, err := CanonicalRecord(in, known)
	if err != nil || got.GetDomain() != "*.example.com" || got.GetRevision() != 0 || in.GetRevision() != 7 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := CanonicalRecord(record("a.com", "mars"), nil); err != nil {
		t.Errorf("regions are not to be known: %v", err)
	}
}

func TestTableIsBounded(t *testing.T) {
	var all []*nusav1.OriginRecord
	for i := range MaxRecords {
		all = append(all, record(fmt.Sprintf("d%d.com", i), "sgp"))
	}
	if _, err := NewTable(all); err != nil {
		t.Fatal(err)
	}
	if _, err := NewTable(append(all, record("one-more.com", "sgp"))); !errors.Is(err, ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
	var large []*nusav1.OriginRecord
	for i := range 100 {
		r := record(fmt.Sprintf("d%d.com", i))
		for k := range 64 {
			r.Origins = append(r.Origins, &nusav1.Origin{Region: fmt.Sprint("r", k), Address: strings.Repeat("x", 253)})
		}
		large = append(large, r)
	}
	if _, err := NewTable(large); !errors.Is(err, ErrTooMany) {
		t.Errorf("too large: %v", err)
	}
}

func TestResolveChoosesAnOrigin(t *testing.T) {
	edge := func(a, b string, millis int) []topology.Edge {
		d := time.Duration(millis) * time.Millisecond
		e := topology.Edge{From: a, To: b, State: topology.OK, Source: topology.Measured, P50: d, P90: 2 * d, P99: 3 * d}
		f := e
		f.From, f.To = b, a
		return []topology.Edge{e, f}
	}
	v := topology.NewView([]topology.Region{
		{Name: "sgp", Location: &topology.Location{Latitude: 1.3, Longitude: 103.8}}, {Name: "syd"}, {Name: "tyo"},
	}, slices.Concat(edge("sgp", "tyo", 70), edge("sgp", "syd", 92)))
	asked := topology.Percentile(0)
	router := func(p topology.Percentile) *topology.Router {
		asked = p
		return topology.NewRouter(v, p)
	}
	wild := record("*.a.com", "syd", "tyo")
	wild.Policy = &nusav1.OriginPolicy{Percentile: 99}
	drained := record("b.com", "syd", "tyo")
	drained.Origins[1].Drained = true
	table, err := NewTable([]*nusav1.OriginRecord{wild, drained, record("x.a.com", "syd")})
	if err != nil {
		t.Fatal(err)
	}
	jakarta := &nusav1.Location{Latitude: -6.2, Longitude: 106.8}
	for _, tc := range []struct {
		req  *nusav1.ResolveOriginRequest
		want string // the record, the choice and its path, then the other candidates
		p    topology.Percentile
	}{
		{&nusav1.ResolveOriginRequest{Domain: "W.a.com.", Region: "sgp"}, "*.a.com tyo sgp,tyo 210ms | syd sgp,syd 276ms", 99},
		{&nusav1.ResolveOriginRequest{Domain: "x.a.com", Region: "sgp"}, "x.a.com syd sgp,syd 92ms", 0},
		{&nusav1.ResolveOriginRequest{Domain: "b.com", Region: "sgp"}, "b.com syd sgp,syd 92ms | tyo refused", 0},
		{&nusav1.ResolveOriginRequest{Domain: "w.a.com", Region: "sgp", Current: "syd"}, "*.a.com syd sgp,syd 276ms | tyo sgp,tyo 210ms", 99},
		{&nusav1.ResolveOriginRequest{Domain: "x.a.com", Location: jakarta}, "x.a.com syd sgp,syd 92ms at sgp", 0},
	} {
		got, err := table.Resolve(tc.req, router)
		if err != nil {
			t.Fatal(err)
		}
		say := func(c *nusav1.OriginChoice) string {
			if c.GetAddress() != c.GetRegion()+".example:443" || c.GetWhy() == "" {
				t.Errorf("%v", c)
			}
			if c.GetRefused() {
				return c.GetRegion() + " refused"
			}
			s := fmt.Sprint(c.GetRegion(), " ", strings.Join(c.GetPath().GetRegions(), ","), " ", c.GetPath().GetRtt().AsDuration())
			if c.GetAccess() != nil {
				s += " at " + c.GetAccess().GetRegion()
			}
			return s
		}
		text := got.GetRecord() + " " + say(got.GetChoice())
		for _, o := range got.GetOthers() {
			text += " | " + say(o)
		}
		if text != tc.want || asked != tc.p {
			t.Errorf("%v: %q at %d, want %q at %d", tc.req, text, asked, tc.want, tc.p)
		}
	}
	for _, tc := range []struct {
		req  *nusav1.ResolveOriginRequest
		code codes.Code
	}{
		{&nusav1.ResolveOriginRequest{Domain: "a.com", Region: "sgp"}, codes.NotFound},
		{&nusav1.ResolveOriginRequest{Domain: "*.a.com", Region: "sgp"}, codes.InvalidArgument},
		{&nusav1.ResolveOriginRequest{Domain: "x.a.com"}, codes.InvalidArgument},
		{&nusav1.ResolveOriginRequest{Domain: "x.a.com", Region: "mars"}, codes.InvalidArgument},
		{&nusav1.ResolveOriginRequest{Domain: "x.a.com", Location: &nusav1.Location{Latitude: 91}}, codes.InvalidArgument},
	} {
		if _, err := table.Resolve(tc.req, router); status.Code(err) != tc.code {
			t.Errorf("%v: %v, want %s", tc.req, err, tc.code)
		}
	}
	refused, err := table.Resolve(&nusav1.ResolveOriginRequest{Domain: "b.com", Region: "sgp"},
		func(p topology.Percentile) *topology.Router {
			return topology.NewRouter(topology.NewView([]topology.Region{{Name: "sgp"}}, nil), p)
		})
	if err != nil || refused.GetChoice().GetRegion() != "" || !refused.GetChoice().GetRefused() || len(refused.GetOthers()) != 2 {
		t.Errorf("no origin can serve: %v, %v", refused, err)
	}
	if got := table.ServingRegions("b.com"); !slices.Equal(got, []string{"syd"}) {
		t.Errorf("serving: %v", got)
	}
	var none *Table
	if _, err := none.Resolve(&nusav1.ResolveOriginRequest{Domain: "a.com", Region: "sgp"}, router); status.Code(err) != codes.NotFound || none.Records() != nil || none.ServingRegions("a.com") != nil {
		t.Errorf("the empty table: %v", err)
	}
}
