package state

import (
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/internal/origins"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Origins holds the stored origin records and the table that is made from them. The state's lock
// guards them.
type Origins struct {
	// Table is nil while no record is stored.
	Table   *origins.Table
	records map[string]originRecord // by domain
}

// originRecord is a stored record and its revision. The message in rec has no revision.
type originRecord struct {
	rec *nusav1.OriginRecord
	rev int64
}

func (o *Origins) set(domain string, rec *nusav1.OriginRecord, revision int64) {
	delete(o.records, domain)
	if rec == nil {
		return
	}
	if o.records == nil {
		o.records = map[string]originRecord{}
	}
	o.records[domain] = originRecord{rec, revision}
}

// rebuild makes the table from all records.
func (o *Origins) rebuild() error {
	all := make([]*nusav1.OriginRecord, 0, len(o.records))
	for _, stored := range o.records {
		rec := proto.CloneOf(stored.rec)
		rec.Revision = stored.rev
		all = append(all, rec)
	}
	table, err := origins.NewTable(all)
	if err != nil {
		return err
	}
	o.Table = table
	return nil
}

// Serving returns, for each domain that a near rule of the jobs names, the regions that serve the
// domain. The lock is held.
func (o *Origins) Serving(jobs []place.Job) map[string][]string {
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
				out[n.Domain] = o.Table.ServingRegions(n.Domain)
			}
		}
	}
	return out
}

// Origin returns a domain's record as the transaction leaves it, and the revision of the stored
// record. See Job.
func (t *Tx) Origin(domain string) (*nusav1.OriginRecord, int64) {
	if ch, ok := t.find(originKey(domain)); ok {
		rec, _ := ch.msg.(*nusav1.OriginRecord)
		return rec, 0
	}
	stored := t.State.Origins.records[domain]
	return stored.rec, stored.rev
}

// PutOrigin stores a record. It fails if there are too many records.
func (t *Tx) PutOrigin(rec *nusav1.OriginRecord) error {
	err := origins.CheckLimits(func(yield func(*nusav1.OriginRecord) bool) {
		for domain, stored := range t.State.Origins.records {
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
	return t.set(txChange{key: originKey(rec.GetDomain()), msg: rec, known: t.State.Origins.records[rec.GetDomain()].rev})
}

// DeleteOrigin removes a domain's record.
func (t *Tx) DeleteOrigin(domain string) error {
	return t.set(txChange{key: originKey(domain), known: t.State.Origins.records[domain].rev})
}
