package state

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nusa-scheduler/nusa/global/compact"
	"github.com/nusa-scheduler/nusa/global/forms"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/submits"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Record is a stored record of a job. Its spec stays encoded, because a decoded spec takes several
// times the memory and most jobs change rarely. A nil Record stands for a job without a record. A
// Record is never changed once it is stored.
type Record struct {
	// head is the encoded JobRecord without Job.spec.
	head []byte
	// rest is the encoded JobSpec, in the form in which regions get it. named: rest lacks the job's
	// name, with which the spec begins. Jobs that differ only in their names share rest.
	rest []byte
	// spec is the checked spec. Jobs that differ only in their names share it.
	spec                  *Spec
	name                  string
	version               int64
	run                   int64 // the stored value, see Run
	since                 map[string]int64
	named, stopped, purge bool
	// earlier is the number of bytes that count for the stored earlier versions.
	earlier int64
}

// groupRules are the rules of a group that the placer does not need.
type groupRules struct {
	autoRevert      bool
	keepReplacement bool
	// canaries, autoPromote and minHealthy are update.canary, auto_promote and min_healthy.
	canaries    int
	autoPromote bool
	minHealthy  time.Duration
	// work is job.GroupHash of a group with canaries.
	work uint64
	// healthyDeadline and progressDeadline are job.Deadlines.
	healthyDeadline, progressDeadline time.Duration
	// plugins are the tasks whose drivers are not built in.
	plugins []forms.Task
}

// groups holds what many jobs have in common.
type groups struct {
	place []place.Group
	rules []groupRules
}

var sharedGroups compact.Shared[groups]

// NewRecord returns the Record of a JobRecord message. The caller must not change rec afterwards.
func NewRecord(rec *nusav1.JobRecord) (*Record, error) { return newJobRecord(rec, nil) }

// newJobRecord is like NewRecord. encoded is the encoded spec of rec, or nil if the caller does
// not have it.
func newJobRecord(rec *nusav1.JobRecord, encoded []byte) (*Record, error) {
	if rec == nil {
		return nil, nil
	}
	spec := rec.GetJob().GetSpec()
	if encoded == nil {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
		if err != nil {
			return nil, fmt.Errorf("encode the spec: %w", err)
		}
		encoded = b
	}
	parsed := parsedSpec(spec)
	return parsed.record(withoutSpec(rec), spec.GetName(), encoded)
}

// Spec is a checked spec, in the form that Records need. It lacks the job's name, so jobs that
// differ only in their names share one Spec. A Spec is never changed.
type Spec struct {
	// job is the job in the form that package place takes. Its version and name are not used.
	job    place.Job
	labels map[string]string
	rules  []groupRules // in the order of job.Groups
	// template and scheduled: see Record.
	template, scheduled bool
	// rest is the encoded spec without its name, see Record.rest. It is nil for a Spec that only one
	// job has.
	rest []byte
}

// NewSpec returns a Spec. The caller must not change spec afterwards.
func NewSpec(spec *nusav1.JobSpec) *Spec {
	encoded, err := (proto.MarshalOptions{Deterministic: true}).Marshal(spec)
	if err != nil {
		return parsedSpec(spec)
	}
	return SpecOf(spec, encoded)
}

// SpecOf is NewSpec for a spec that is encoded already.
func SpecOf(spec *nusav1.JobSpec, encoded []byte) *Spec {
	out := parsedSpec(spec)
	_, out.rest, _ = submits.CutName(encoded)
	return out
}

func parsedSpec(spec *nusav1.JobSpec) *Spec {
	out := &Spec{job: specToPlace(spec), labels: spec.GetLabels(), template: job.IsTemplate(spec), scheduled: spec.GetSchedule() != nil}
	for _, g := range out.job.Groups {
		from := spec.GetGroups()[g.Name]
		rules := groupRules{
			autoRevert:      job.AutoRevert(from),
			keepReplacement: from.GetDisconnect().GetReconcile() == nusav1.Reconcile_RECONCILE_KEEP_REPLACEMENT,
		}
		rules.healthyDeadline, rules.progressDeadline = job.Deadlines(from)
		rules.canaries, rules.autoPromote = int(from.GetUpdate().GetCanary()), from.GetUpdate().GetAutoPromote()
		rules.minHealthy = job.MinHealthy(from, false)
		rules.plugins = forms.OfGroup(from, g.Name)
		if rules.canaries > 0 {
			rules.work = job.GroupHash(from)
		}
		out.rules = append(out.rules, rules)
	}
	out.share()
	return out
}

// share replaces the groups with equal ones of other jobs, if there are any.
func (s *Spec) share() {
	own := groups{s.job.Groups, s.rules}
	own = sharedGroups.Of(own.hash(), own)
	s.job.Groups, s.rules = own.place, own.rules
}

// record returns the Record of a job. head is the job's record without the spec. encoded is the
// encoded spec.
func (s *Spec) record(head *nusav1.JobRecord, name string, encoded []byte) (*Record, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(head)
	if err != nil {
		return nil, fmt.Errorf("encode the record: %w", err)
	}
	return s.encodedRecord(head, raw, name, encoded), nil
}

// encodedRecord returns the Record of a job, like record. raw is the encoded head.
func (s *Spec) encodedRecord(head *nusav1.JobRecord, raw []byte, name string, encoded []byte) *Record {
	of := s
	if since := head.GetSince(); len(since) > 0 {
		of = of.own()
		of.job.Groups = slices.Clone(of.job.Groups)
		for i := range of.job.Groups {
			of.job.Groups[i].UnchangedSince = since[of.job.Groups[i].Name]
		}
		of.share()
	}
	if o := of.job.RegionOrder; o != nil && head.GetJob().GetReverted() != nil {
		of = of.own()
		of.job.RegionOrder = &place.RegionOrder{MaxParallel: o.MaxParallel} // it begins where the version failed, and is not paused
	}
	out := &Record{
		head: raw, rest: encoded, spec: of, name: name, version: head.GetJob().GetVersion(), stopped: head.GetJob().GetStopped(),
		run: head.GetJob().GetRun(), since: head.GetSince(), purge: head.GetPurge(), earlier: earlierBytes(head.GetVersions()),
	}
	if before := len(encoded) - len(s.rest); s.rest != nil && before == nameSize(name) && bytes.Equal(encoded[before:], s.rest) {
		out.rest, out.named = s.rest, true
	}
	return out
}

// own returns a copy of a Spec that only one job has.
func (s *Spec) own() *Spec {
	out := *s
	return &out
}

// specName is the field of nusav1.JobSpec with the name.
const specName protowire.Number = 1

// nameSize returns the size of the encoded name of a job.
func nameSize(name string) int { return protowire.SizeTag(specName) + protowire.SizeBytes(len(name)) }

// The fields of nusav1.JobRecord and nusav1.Job with the spec.
const (
	recordJob protowire.Number = 1
	jobSpec   protowire.Number = 1
)

// stored returns the stored form of the record. It contains the Job message twice, first without
// the spec and then with only the spec. A reader merges the two, so the spec need not be encoded
// again.
func (r *Record) stored() []byte {
	size := r.specSize()
	spec := protowire.SizeTag(jobSpec) + protowire.SizeBytes(size)
	out := make([]byte, 0, 1+len(r.head)+protowire.SizeTag(recordJob)+protowire.SizeBytes(spec))
	out = append(append(out, formatProto), r.head...)
	out = protowire.AppendVarint(protowire.AppendTag(out, recordJob, protowire.BytesType), uint64(spec))
	out = protowire.AppendVarint(protowire.AppendTag(out, jobSpec, protowire.BytesType), uint64(size))
	return r.appendSpec(out)
}

// specSize returns the size of the encoded spec.
func (r *Record) specSize() int {
	switch {
	case r == nil:
		return 0
	case r.named:
		return nameSize(r.name) + len(r.rest)
	}
	return len(r.rest)
}

// appendSpec appends the encoded spec.
func (r *Record) appendSpec(to []byte) []byte {
	if r.named {
		to = protowire.AppendString(protowire.AppendTag(to, specName, protowire.BytesType), r.name)
	}
	return append(to, r.rest...)
}

// split returns the two parts of a stored record. It returns false if an earlier version stored the
// record in another form.
func split(value []byte) (head, spec []byte, ok bool) {
	if len(value) == 0 || value[0] != formatProto {
		return nil, nil, false
	}
	var last []byte
	for rest := value[1:]; len(rest) > 0; {
		field, kind, n := protowire.ConsumeField(rest)
		if n < 0 {
			return nil, nil, false
		}
		_, _, tag := protowire.ConsumeTag(rest)
		last = nil
		if field == recordJob && kind == protowire.BytesType {
			head = value[1 : len(value)-len(rest)]
			last, _ = protowire.ConsumeBytes(rest[tag:n])
		}
		rest = rest[n:]
	}
	field, kind, tag := protowire.ConsumeTag(last)
	if tag < 0 || field != jobSpec || kind != protowire.BytesType {
		return nil, nil, false
	}
	spec, n := protowire.ConsumeBytes(last[tag:])
	return head[:len(head):len(head)], spec, n == len(last)-tag
}

// loadRecord returns a stored record. specs has the specs that were loaded before: most jobs differ
// from another one only in their name. The record may keep the value.
func loadRecord(kv store.KV, specs *submits.Cache[Spec]) (*Record, error) {
	rec := &nusav1.JobRecord{}
	head, encoded, ok := split(kv.Value)
	if !ok || proto.Unmarshal(head, rec) != nil || rec.GetJob().GetSpec() != nil {
		if err := Decode(kv, rec); err != nil {
			return nil, err
		}
		return NewRecord(rec)
	}
	name, spec, err := specs.Get(encoded, func(spec *nusav1.JobSpec) (Spec, int, error) {
		out := parsedSpec(spec)
		_, rest, _ := submits.CutName(encoded)
		out.rest = bytes.Clone(rest)
		return *out, len(encoded), nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", kv.Key, ErrFormat, err)
	}
	out := spec.encodedRecord(rec, head, name, encoded)
	if out.named {
		out.head = bytes.Clone(head) // copy the head, so that the rest of the value can be collected as garbage
	}
	return out, nil
}

// hash returns a number that is usually different for different groups.
func (g groups) hash() uint64 {
	h := fnv.New64a()
	number := func(n uint64) { _, _ = h.Write(binary.LittleEndian.AppendUint64(nil, n)) }
	for i := range g.place {
		p := &g.place[i]
		_, _ = h.Write([]byte(p.Name))
		number(p.AskHash)
		number(uint64(p.Count))
		number(uint64(p.UnchangedSince))
		for _, s := range p.Regions.Allow {
			_, _ = h.Write([]byte(s.Name))
		}
		for _, n := range p.Regions.Near {
			_, _ = h.Write([]byte(n.Selector.Name))
			number(uint64(n.MaxRTT))
			number(uint64(n.Weight) << 1)
			if n.Required {
				number(1)
			}
		}
	}
	return h.Sum64()
}

// withoutSpec returns a copy of a record without the spec. The copy shares all other fields.
func withoutSpec(rec *nusav1.JobRecord) *nusav1.JobRecord {
	head, job := &nusav1.JobRecord{}, &nusav1.Job{}
	share(head, rec)
	share(job, rec.GetJob())
	job.Spec = nil
	head.Job = job
	return head
}

// share sets the fields of a message to those of another message.
func share(to, from proto.Message) {
	from.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		to.ProtoReflect().Set(f, v)
		return true
	})
}

// Full returns the record with its decoded spec. The caller may change the result.
func (r *Record) Full() *nusav1.JobRecord {
	if r == nil {
		return nil
	}
	out := r.decodedHead()
	out.Job.Spec = r.Spec()
	return out
}

// decodedHead returns the record without its spec. The caller may change it.
func (r *Record) decodedHead() *nusav1.JobRecord {
	out := &nusav1.JobRecord{}
	_ = proto.Unmarshal(r.head, out) // cannot fail: newJobRecord has encoded it
	if out.Job == nil {
		out.Job = &nusav1.Job{}
	}
	return out
}

// Spec decodes the spec. The caller may change it.
func (r *Record) Spec() *nusav1.JobSpec {
	if r == nil {
		return nil
	}
	spec := &nusav1.JobSpec{}
	_ = proto.Unmarshal(r.encoded(), spec) // cannot fail: newJobRecord has the encoded form of a message
	return spec
}

// encoded returns the encoded spec. The caller must not change it.
func (r *Record) encoded() []byte {
	switch {
	case r == nil:
		return nil
	case r.named:
		return r.appendSpec(make([]byte, 0, r.specSize()))
	}
	return r.rest
}

// ToPlace returns the job in the form that package place takes, without its slots. revision is the
// revision at which the record is stored.
func (r *Record) ToPlace(revision int64) place.Job {
	if r == nil {
		return place.Job{}
	}
	out := r.spec.job
	out.Name, out.Version, out.Stopped, out.Revision, out.Run = r.name, r.version, r.stopped, revision, r.Run(revision)
	return out
}

// Version returns the version of the job, or 0 without a record.
func (r *Record) Version() int64 {
	if r == nil {
		return 0
	}
	return r.version
}

// Stopped reports whether the job has the order to stop.
func (r *Record) Stopped() bool { return r != nil && r.stopped }

// Purge reports whether the job is removed once no region owns a slot of it.
func (r *Record) Purge() bool { return r != nil && r.purge }

// Run returns the run of the job. revision is the revision at which the record is stored. A result
// of 0 means the revision of the transaction that writes the record.
func (r *Record) Run(revision int64) int64 {
	if r == nil {
		return revision
	}
	return cmp.Or(r.run, revision)
}

// Labels returns the labels of the job. The caller must not change them.
func (r *Record) Labels() map[string]string {
	if r == nil {
		return nil
	}
	return r.spec.labels
}

// Type returns the type of the job. It returns "" if r is nil.
func (r *Record) Type() place.JobType {
	if r == nil {
		return ""
	}
	return r.spec.job.Type
}

// KeepReplacement reports whether the replacement of a group stays when the former region returns.
func (r *Record) KeepReplacement(group string) bool { return r.rulesOf(group).keepReplacement }

// Deadlines returns update.healthy_deadline and update.progress_deadline of a group.
func (r *Record) Deadlines(group string) (healthy, progress time.Duration) {
	rules := r.rulesOf(group)
	return rules.healthyDeadline, rules.progressDeadline
}

// MinHealthy returns update.min_healthy of a group.
func (r *Record) MinHealthy(group string) time.Duration { return r.rulesOf(group).minHealthy }

// AutoPromotes reports whether each group with canaries has update.auto_promote.
func (r *Record) AutoPromotes(rec *nusav1.RolloutRecord) bool {
	for name := range rec.GetCanaries() {
		if !r.rulesOf(name).autoPromote {
			return false
		}
	}
	return len(rec.GetCanaries()) > 0
}

// keepsHealthy is like the function keepsHealthy.
func (r *Record) keepsHealthy() bool {
	return r != nil && slices.ContainsFunc(r.spec.rules, func(g groupRules) bool { return g.autoRevert || g.canaries > 0 })
}

func (r *Record) asksRevert() bool {
	return r != nil && slices.ContainsFunc(r.spec.rules, func(g groupRules) bool { return g.autoRevert })
}

// hasPlugins reports whether a task has a driver that is not built in.
func (r *Record) hasPlugins() bool {
	return r != nil && slices.ContainsFunc(r.spec.rules, func(g groupRules) bool { return len(g.plugins) > 0 })
}

func (r *Record) rulesOf(group string) groupRules {
	if r != nil {
		for i := range r.spec.rules {
			if r.spec.job.Groups[i].Name == group {
				return r.spec.rules[i]
			}
		}
	}
	return groupRules{}
}

// HasGroup reports whether the job has the named group.
func (r *Record) HasGroup(name string) bool {
	return r != nil && slices.ContainsFunc(r.spec.job.Groups, func(g place.Group) bool { return g.Name == name })
}

// obsolete reports whether a slot's version is older than the latest change of its group's work.
func (r *Record) obsolete(version int64, group string) bool {
	return r != nil && version < r.since[group]
}

// recordOfMessage returns the Record of a loaded or written message, or nil for a removed one.
func recordOfMessage(m any) *Record {
	if made, ok := m.(*Record); ok {
		return made
	}
	rec, _ := m.(*nusav1.JobRecord)
	out, _ := NewRecord(rec) // cannot fail: the record was just encoded or decoded
	return out
}
