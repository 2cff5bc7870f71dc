package state

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"iter"
	"maps"
	"math"
	"reflect"
	"slices"

	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

// ErrSnapshot says that the records are not a complete snapshot.
var ErrSnapshot = errors.New("snapshot is damaged")

// Record is one entity in a snapshot. Exactly one pointer is set.
type Record struct {
	Header   *Header         `codec:"header,omitempty"`
	Node     *Node           `codec:"node,omitempty"`
	Reports  *ReportsRecord  `codec:"reports,omitempty"`
	Job      *Job            `codec:"job,omitempty"`
	Local    *LocalJob       `codec:"local,omitempty"`
	Group    *GroupRecord    `codec:"group,omitempty"`
	Instance *InstanceRecord `codec:"instance,omitempty"`
	Alloc    *AllocRecord    `codec:"alloc,omitempty"`
	Key      *KeyRecord      `codec:"key,omitempty"`
	End      *EndRecord      `codec:"end,omitempty"`
	// Document needs Cluster.FeatureLevel 3.
	Document *Document    `codec:"document,omitempty"`
	Trail    *TrailRecord `codec:"trail,omitempty"`
	Audit    *AuditEntry  `codec:"audit,omitempty"`
	// Events and EventChunk need Cluster.FeatureLevel 5.
	Events     *EventsRecord `codec:"events,omitempty"`
	EventChunk *EventChunk   `codec:"chunk,omitempty"`
	// Override needs Cluster.FeatureLevel OverrideLevel.
	Override *Override `codec:"override,omitempty"`
	// Stored needs Cluster.FeatureLevel VersionLevel.
	Stored *StoredVersion `codec:"stored,omitempty"`
}

// fieldsBefore5 is how many fields a Record had before feature level 5. Hash has the later fields
// only if they are set, so that servers of both versions have the same hash.
const fieldsBefore5 = 13

// Header is the first record of a snapshot.
type Header struct {
	Index   uint64
	Cluster Cluster
	NextSeq uint64
	NextNum uint32
	NextGID uint32
}

// ReportsRecord is the position up to which a node's reports are stored.
type ReportsRecord struct {
	NodeID   string
	Position Position
}

// GroupRecord is a group with its slots. It comes before the group's instances and
// allocations.
type GroupRecord struct {
	Key         GroupKey
	GID         uint32
	Type        JobType
	Priority    int32
	Slots       []Slot
	ModifyIndex uint64
}

// InstanceRecord is an instance with the number of its group.
type InstanceRecord struct {
	GID      uint32
	Instance Instance
}

// KeyRecord is a used idempotency key and the result of its request.
type KeyRecord struct {
	Idempotency Idempotency
	Version     int64
	Revision    uint64
	Same        bool // see Result
}

// EndRecord is the last record of a snapshot. Without it a snapshot is truncated.
type EndRecord struct {
	Records uint64 // the number of records before this one
}

// Records yields every entity in a deterministic order. The first record is a Header, the
// last an EndRecord. The record of an instance or allocation is valid only until the next
// one.
func (v *View) Records() iter.Seq[Record] {
	return func(yield func(Record) bool) {
		var n uint64
		put := func(r Record) bool {
			n++
			return yield(r)
		}
		if v.records(put) {
			yield(Record{End: &EndRecord{n}})
		}
	}
}

func (v *View) records(put func(Record) bool) bool {
	if !put(Record{Header: &Header{v.index, v.cluster, v.nextSeq, v.nextNum, v.nextGID}}) {
		return false
	}
	for n := range v.Nodes() {
		if !put(Record{Node: n}) {
			return false
		}
	}
	for n := range v.Nodes() {
		if p, ok := v.reports.Get(n.Num); ok && !put(Record{Reports: &ReportsRecord{n.ID, *p}}) {
			return false
		}
	}
	for j := range v.versions() {
		if !put(Record{Job: j}) {
			return false
		}
	}
	for l := range v.LocalJobs() {
		if !put(Record{Local: l}) {
			return false
		}
	}
	for _, k := range v.keys.All() {
		if !put(Record{Key: k}) {
			return false
		}
	}
	for _, d := range v.documents.All() {
		if !put(Record{Document: d}) {
			return false
		}
	}
	for o := range v.Overrides() {
		if !put(Record{Override: o}) {
			return false
		}
	}
	for _, all := range v.stored.All() {
		for _, old := range all {
			if !put(Record{Stored: old}) {
				return false
			}
		}
	}
	return v.trail.records(put) && v.events.records(put) && v.groupRecords(put)
}

func (v *View) groupRecords(put func(Record) bool) bool {
	var instance InstanceRecord
	var alloc AllocRecord
	for _, g := range v.groups.All() {
		rec := &GroupRecord{Key: g.key, GID: g.gid, Type: g.typ, Priority: g.priority, ModifyIndex: g.modify}
		for _, s := range g.slots {
			rec.Slots = append(rec.Slots, *s)
		}
		if !put(Record{Group: rec}) {
			return false
		}
		for in := range g.insts.all() {
			instance = InstanceRecord{g.gid, in.Instance}
			if !put(Record{Instance: &instance}) {
				return false
			}
		}
		for a := range g.attempts() {
			alloc = a.record()
			if !put(Record{Alloc: &alloc}) {
				return false
			}
		}
	}
	return true
}

// Restore builds a state from all records of a snapshot. The state uses the entities in the
// records, so the caller must not change them.
func Restore(records iter.Seq2[Record, error]) (*State, error) {
	s := New()
	r := restorer{State: s, dedup: newDedup()}
	for rec, err := range records {
		if err != nil {
			return nil, err
		}
		if err := r.add(&rec); err != nil {
			return nil, err
		}
	}
	if !r.whole {
		return nil, fmt.Errorf("%w: it ends after %d records, without an end record", ErrSnapshot, r.n)
	}
	r.finish()
	return s, nil
}

type restorer struct {
	*State
	dedup dedup
	n     uint64
	whole bool
}

func (r *restorer) add(rec *Record) error {
	if r.whole || (r.n == 0) != (rec.Header != nil) {
		return fmt.Errorf("%w: record %d is out of order", ErrSnapshot, r.n)
	}
	switch {
	case rec.Header != nil:
		h := rec.Header
		r.View.index, r.cluster = h.Index, h.Cluster
		r.nextSeq, r.nextNum, r.nextGID = h.NextSeq, h.NextNum, h.NextGID
	case rec.Node != nil:
		n := rec.Node
		u := newUse(r.own, n)
		r.nodes.Set(r.own, str(n.ID), n)
		r.uses.Set(r.own, n.Num, u)
		r.dedup.nodeRefs[*u.node] = u.node
	case rec.Reports != nil:
		if n, ok := r.View.Node(rec.Reports.NodeID); ok {
			r.reports.Set(r.own, n.Num, &rec.Reports.Position)
		}
	case rec.Job != nil: // versions come in order, and no copy shares the slice yet
		e := r.jobEntryFor(rec.Job.Key)
		e.versions = append(e.versions, rec.Job)
	case rec.Local != nil:
		r.setLocal(rec.Local)
	case rec.Key != nil:
		r.keys.Set(r.own, str(rec.Key.Idempotency.Key), rec.Key)
	case rec.Document != nil:
		setDocument(r.State, rec.Document)
	case rec.Trail != nil:
		if err := restoreTrail(r.State, rec.Trail); err != nil {
			return fmt.Errorf("%w: %w", ErrSnapshot, err)
		}
	case rec.Audit != nil:
		addEntry(r.State, rec.Audit)
	case rec.Events != nil:
		e := rec.Events
		r.events.next, r.events.began, r.events.before, r.events.newest = e.Next, e.Began, e.Before, e.Newest
	case rec.EventChunk != nil:
		if err := r.restoreChunk(rec.EventChunk); err != nil {
			return err
		}
	case rec.Override != nil:
		r.setOverride(JobKey{Namespace: rec.Override.Namespace, Job: rec.Override.Job}, rec.Override)
	case rec.Stored != nil:
		r.putStored(rec.Stored)
	case rec.Group != nil:
		r.group(rec.Group)
	case rec.Instance != nil:
		g, ok := r.groups.Get(rec.Instance.GID)
		if !ok {
			return fmt.Errorf("%w: instance %d of no group", ErrSnapshot, rec.Instance.Instance.Index)
		}
		g.insts.set(r.own, &inst{own: r.own, Instance: rec.Instance.Instance})
	case rec.Alloc != nil:
		if err := r.alloc(rec.Alloc); err != nil {
			return err
		}
	case rec.End != nil:
		if rec.End.Records != r.n {
			return fmt.Errorf("%w: %d records of %d", ErrSnapshot, r.n, rec.End.Records)
		}
		r.whole = true
	default:
		return fmt.Errorf("%w: record %d is of an unknown kind; upgrade this server", ErrSnapshot, r.n)
	}
	r.n++
	return nil
}

func (r *restorer) group(rec *GroupRecord) {
	g := &group{own: r.own, gid: rec.GID, key: rec.Key, typ: rec.Type, priority: rec.Priority, modify: rec.ModifyIndex}
	for i := range rec.Slots {
		g.slots = append(g.slots, &rec.Slots[i])
	}
	r.newestSlot(g.slots)
	r.addGroup(rec.Key, rec.GID)
	r.groups.Set(r.own, rec.GID, g)
}

func (r *restorer) alloc(rec *AllocRecord) error {
	g, ok := r.View.group(GroupKey{rec.Namespace, rec.Job, rec.Group, rec.Local})
	if !ok {
		return fmt.Errorf("%w: allocation %s has no group", ErrSnapshot, rec.ID)
	}
	g.allocs++
	a := r.dedup.alloc(rec, g)
	g.placement = a.Placement
	ref := allocKey{g.gid, a.Index, a.Seq}
	t := &txn{State: r.State}
	in := t.instance(g, a.Index)
	if in.newest != nil { // allocations come by Seq, and no copy shares the slice yet
		in.earlier = append(in.earlier, in.newest)
	}
	in.newest = a
	t.addID(a.ID, ref)
	if u := t.useFor(a.NodeNum); u != nil {
		u.allocs = u.allocs.With(ref, t.hasAlloc)
	}
	r.byState[a.State]++
	if a.unsure() {
		r.unsure++
	}
	if a.Charged {
		t.charge(a, true)
	} else if !a.Live() {
		r.ended.Set(r.own, endedKey{a.ModifiedUnixNano, a.Seq}, ref)
	}
	return nil
}

// finish counts the instances of every group.
func (r *restorer) finish() {
	t := &txn{State: r.State}
	for _, u := range r.uses.All() {
		slices.SortFunc(u.allocs.All(), func(a, b allocKey) int { return cmp.Compare(a.seq, b.seq) })
	}
	var all []*group
	for _, g := range r.groups.All() {
		all = append(all, g)
	}
	for _, g := range all {
		g.countSlots()
		t.refreshAll(g)
		t.rank(g)
	}
}

// Hash returns a digest of all records. At an equal index it is equal on every server.
func (v *View) Hash() string {
	h := sha256.New()
	for rec := range v.Records() {
		fields := reflect.ValueOf(rec)
		for i := range fields.NumField() {
			if f := fields.Field(i); i < fieldsBefore5 || !f.IsNil() {
				digest(h, f)
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// fieldsBefore is how many fields a type had when servers of a lower feature level were built. They do
// not know the fields after these, which digest leaves out while they are zero.
var fieldsBefore = map[reflect.Type]int{
	reflect.TypeFor[Group]():    fieldsOf[Group]("MinHealthy"),
	reflect.TypeFor[Instance](): fieldsOf[Instance]("Retry"),
	reflect.TypeFor[Slot]():     fieldsOf[Slot]("Parallel"),

	reflect.TypeFor[retry.Policy](): fieldsOf[retry.Policy]("MemoryBytes"),
	reflect.TypeFor[retry.Rule]():   fieldsOf[retry.Rule]("MemoryMilli"),
	reflect.TypeFor[retry.Record](): fieldsOf[retry.Record]("MemoryBytes"),

	reflect.TypeFor[LocalJob]():    fieldsOf[LocalJob]("Notes"),
	reflect.TypeFor[Cluster]():     fieldsOf[Cluster]("LevelIndex"),
	reflect.TypeFor[Node]():        fieldsOf[Node]("DrainUntilUnixNano"),
	reflect.TypeFor[AllocRecord](): fieldsOf[AllocRecord]("Resized"),
}

// fieldsOf returns how many fields a struct has before a given one.
func fieldsOf[T any](field string) int {
	f, _ := reflect.TypeFor[T]().FieldByName(field)
	return f.Index[0]
}

// digest writes a value in a canonical form. Maps are sorted by key, and a nil slice equals
// an empty slice.
func digest(h hash.Hash, v reflect.Value) {
	number := func(n uint64) {
		var b [8]byte
		binary.BigEndian.PutUint64(b[:], n)
		h.Write(b[:])
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			number(0)
			return
		}
		number(1)
		digest(h, v.Elem())
	case reflect.Struct:
		n := v.NumField()
		if before, ok := fieldsBefore[v.Type()]; ok {
			for n > before && v.Field(n-1).IsZero() {
				n--
			}
		}
		for i := range n {
			digest(h, v.Field(i))
		}
	case reflect.Slice:
		number(uint64(v.Len()))
		for i := range v.Len() {
			digest(h, v.Index(i))
		}
	case reflect.Map: // always a map of strings to strings
		m := v.Interface().(map[string]string)
		number(uint64(len(m)))
		for _, k := range slices.Sorted(maps.Keys(m)) {
			digest(h, reflect.ValueOf(k))
			digest(h, reflect.ValueOf(m[k]))
		}
	case reflect.String:
		number(uint64(v.Len()))
		h.Write([]byte(v.String()))
	case reflect.Bool:
		if v.Bool() {
			number(1)
		} else {
			number(0)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		number(uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		number(v.Uint())
	case reflect.Float64:
		number(math.Float64bits(v.Float()))
	default:
		panic("state: no canonical form of " + v.Type().String())
	}
}
