package global

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/internal/origins"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology/origin"
)

// originsAPI is the public Origins service.
type originsAPI struct {
	nusav1.UnimplementedOriginsServer
	s *server
}

// Set implements nusav1.OriginsServer.
func (o *originsAPI) Set(ctx context.Context, req *nusav1.SetOriginsRequest) (*nusav1.OriginRecord, error) {
	a, err := o.s.current()
	if err != nil {
		return nil, err
	}
	changed, revision := false, int64(0)
	var next *nusav1.OriginRecord
	written, err := a.commit.Do(ctx, func(t *Tx) error {
		known := func(name string) (bool, []string) {
			if r, _ := t.Region(name); r != nil {
				return true, nil
			}
			return false, t.State.RegionNames()
		}
		var err error
		if next, err = origins.CanonicalRecord(req.GetRecord(), known); err != nil {
			return err
		}
		domain := next.GetDomain()
		old, rev := t.Origin(domain)
		if err := CheckRevision("origin record "+domain, req.GetRevision(), old != nil, rev); err != nil {
			return err
		}
		if changed, revision = !proto.Equal(old, next), rev; !changed {
			return nil
		}
		if err := t.Audit("origins.set", domain, ""); err != nil {
			return err
		}
		return t.PutOrigin(next)
	})
	if err != nil {
		return nil, apiError(err)
	}
	if changed || revision == 0 { // 0: the same record, set by another request of the transaction
		revision = written
	}
	if changed {
		a.st.Events.Add("origins.set", next.GetDomain(), "by an operator, %s", topo.ListNames(regionsOf(next)))
	}
	next = proto.CloneOf(next)
	next.Revision = revision
	return next, nil
}

func regionsOf(rec *nusav1.OriginRecord) []string {
	var out []string
	for _, o := range rec.GetOrigins() {
		out = append(out, o.GetRegion())
	}
	return out
}

// List implements nusav1.OriginsServer.
func (o *originsAPI) List(context.Context, *nusav1.ListOriginsRequest) (*nusav1.ListOriginsResponse, error) {
	a, err := o.s.current()
	if err != nil {
		return nil, err
	}
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	return &nusav1.ListOriginsResponse{Records: a.st.origins.Records(), Age: durationpb.New(0)}, nil
}

// Remove implements nusav1.OriginsServer.
func (o *originsAPI) Remove(ctx context.Context, req *nusav1.RemoveOriginsRequest) (*nusav1.RemoveOriginsResponse, error) {
	a, err := o.s.current()
	if err != nil {
		return nil, err
	}
	domain, err := origin.ParsePattern(req.GetDomain())
	if err != nil {
		return nil, invalid("domain", err.Error())
	}
	_, err = a.commit.Do(ctx, func(t *Tx) error {
		old, revision := t.Origin(domain)
		if old == nil {
			return status.Errorf(codes.NotFound, "there is no origin record %q", domain)
		}
		if err := CheckRevision("origin record "+domain, req.GetRevision(), true, revision); err != nil {
			return err
		}
		if err := t.Audit("origins.removed", domain, ""); err != nil {
			return err
		}
		return t.DeleteOrigin(domain)
	})
	if err != nil {
		return nil, apiError(err)
	}
	a.st.Events.Add("origins.removed", domain, "by an operator")
	return &nusav1.RemoveOriginsResponse{}, nil
}

// Resolve implements nusav1.OriginsServer.
func (o *originsAPI) Resolve(_ context.Context, req *nusav1.ResolveOriginRequest) (*nusav1.ResolveOriginResponse, error) {
	a, err := o.s.current()
	if err != nil {
		return nil, err
	}
	st := a.st
	st.mu.Lock()
	if name := req.GetRegion(); name != "" && st.Regions[name] == nil {
		defer st.mu.Unlock()
		return nil, st.NoRegion("region", name)
	}
	table, picture := st.origins, st.topologyPicture()
	age := st.Clock() - picture.at
	st.mu.Unlock()
	out, err := table.Resolve(req, picture.routers.At)
	if err != nil {
		return nil, err
	}
	out.Age = durationpb.New(age)
	return out, nil
}

// Origin is as job: a domain's record and the revision of the stored one.
func (t *Tx) Origin(domain string) (*nusav1.OriginRecord, int64) {
	if ch, ok := t.find(originKey(domain)); ok {
		rec, _ := ch.msg.(*nusav1.OriginRecord)
		return rec, 0
	}
	stored := t.State.originRecords[domain]
	return stored.rec, stored.rev
}

// PutOrigin stores a record, if there may be so many.
func (t *Tx) PutOrigin(rec *nusav1.OriginRecord) error {
	err := origins.CheckLimits(func(yield func(*nusav1.OriginRecord) bool) {
		for domain, stored := range t.State.originRecords {
			if _, changed := t.find(originKey(domain)); !changed && domain != rec.GetDomain() && !yield(stored.rec) {
				return
			}
		}
		for _, ch := range t.changes {
			if other, ok := ch.msg.(*nusav1.OriginRecord); ok && other.GetDomain() != rec.GetDomain() && !yield(other) {
				return
			}
		}
		yield(rec)
	})
	if err != nil {
		return err
	}
	return t.set(txChange{key: originKey(rec.GetDomain()), msg: rec, known: t.State.originRecords[rec.GetDomain()].rev})
}

func (t *Tx) DeleteOrigin(domain string) error {
	return t.set(txChange{key: originKey(domain), known: t.State.originRecords[domain].rev})
}

// originRecord is a stored record, without revision.
type originRecord struct {
	rec *nusav1.OriginRecord
	rev int64
}

// applyOrigin takes a record; regions are told. mu is held.
func (st *State) applyOrigin(domain string, rec *nusav1.OriginRecord, revision int64) {
	if delete(st.originRecords, domain); rec != nil {
		st.originRecords[domain] = originRecord{rec, revision}
	}
	if st.loading {
		return // gathered at the end
	}
	if err := st.gatherOrigins(); err != nil {
		return // it was checked before it was written; the table stays as it was
	}
	st.Notify()
	st.ProbeDemandStale = true
	for _, r := range st.Regions {
		if r.Session != nil {
			r.Session.originsDirty = true
			r.Session.wake()
		}
	}
}

// gatherOrigins makes the table of every record, with its revision. mu is held.
func (st *State) gatherOrigins() error {
	all := make([]*nusav1.OriginRecord, 0, len(st.originRecords))
	for _, stored := range st.originRecords {
		rec := proto.CloneOf(stored.rec)
		rec.Revision = stored.rev
		all = append(all, rec)
	}
	table, err := origins.NewTable(all)
	if err != nil {
		return err
	}
	st.origins = table
	return nil
}

// Serving are the regions of the domains that jobs want to be near. mu is held.
func (st *State) Serving(jobs []place.Job) map[string][]string {
	var out map[string][]string
	for _, j := range jobs {
		for _, g := range j.Groups {
			for _, n := range g.Regions.Near {
				if n.Domain == "" || out[n.Domain] != nil {
					continue
				}
				if out == nil {
					out = map[string][]string{}
				}
				out[n.Domain] = st.origins.ServingRegions(n.Domain)
			}
		}
	}
	return out
}
