package state

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/notify"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Keys of the store. The names of jobs, namespaces, groups and regions contain neither a slash nor
// an at-sign, so keys can be parsed.
const (
	root             = "/nusa/v1/"
	ClusterKey       = root + "cluster"
	ElectionPrefix   = root + "election/"
	leadershipKey    = root + "leadership"
	jobPrefix        = root + "jobs/"
	slotPrefix       = root + "slots/"
	RegionPrefix     = root + "regions/"
	idemPrefix       = root + "idempotency/"
	resultPrefix     = root + "results/"
	HealthyPrefix    = root + "healthy/"
	CheckpointPrefix = root + "checkpoints/"
	AuditPrefix      = root + "audit/"
	// AuditEnd is the end of the keys with AuditPrefix.
	AuditEnd      = root + "audit0"
	auditStateKey = root + "audit-state"
	auditKeysKey  = root + "audit-key"
	originPrefix  = root + "origins/"
	authKey       = root + "auth"
	// webhookPrefix is for the records of webhooks, and progressPrefix for what was delivered.
	webhookPrefix  = root + "webhooks/"
	progressPrefix = root + "webhook-progress/"
	// rolloutPrefix is for what cannot be derived about rollouts, and versionPrefix for the specs of
	// earlier versions, which are not loaded.
	rolloutPrefix = root + "rollouts/"
	versionPrefix = root + "versions/"
	// attemptsPrefix is for what the instances of groups have used of their retry policies.
	attemptsPrefix = root + "attempts/"
)

// loaded are the prefixes of the records that Load always reads, in the order of reading. The reports in
// checkpoints come before the slots, so that only slots that are newer than a report are charged.
var loaded = [...]string{leadershipKey, authKey, RegionPrefix, jobPrefix, HealthyPrefix, CheckpointPrefix, slotPrefix, resultPrefix, originPrefix, webhookPrefix, progressPrefix, rolloutPrefix, attemptsPrefix}

// JobKey names a job.
type JobKey struct{ Namespace, Name string }

// String returns "namespace/name".
func (k JobKey) String() string { return k.Namespace + "/" + k.Name }

// recordKey returns the store key of the job itself.
func (k JobKey) recordKey() string { return jobPrefix + k.String() }

// resultKey returns the store key of the result of the job's latest run.
func (k JobKey) resultKey() string { return resultPrefix + k.String() }

// healthyKey returns the store key of the latest version that ran with all instances. See
// rollout.go.
func (k JobKey) healthyKey() string { return HealthyPrefix + k.String() }

// rolloutKey returns the store key of the record of the job's rollout.
func (k JobKey) rolloutKey() string { return rolloutPrefix + k.String() }

// attemptsKey returns the store key of what the instances of a group have used of their retry policy.
func (k JobKey) attemptsKey(group string) string { return attemptsPrefix + k.String() + "/" + group }

// VersionKey returns the store key of the spec of an earlier version of a job.
func VersionKey(k JobKey, version int64) string {
	return versionPrefix + k.String() + "/" + strconv.FormatInt(version, 10)
}

// KeyOf returns the key of the job that a spec describes.
func KeyOf(spec *nusav1.JobSpec) JobKey { return JobKey{spec.GetNamespace(), spec.GetName()} }

func jobOfKey(key, prefix string) JobKey {
	namespace, name, _ := strings.Cut(key[len(prefix):], "/")
	return JobKey{namespace, name}
}

func jobOfSlot(s *region.Slot) JobKey { return JobKey{s.Namespace, s.Job} }

// slotKey returns the store key of a slot.
func slotKey(s *region.Slot) string {
	var most [keyLength]byte
	return string(appendSlotKey(most[:0], s))
}

// keyLength is the length of most keys. Longer names are rare.
const keyLength = 256

// appendSlotKey appends slotKey to a list of bytes.
func appendSlotKey(b []byte, s *region.Slot) []byte {
	b = append(append(append(b, slotPrefix...), s.Namespace...), '/')
	b = append(append(append(append(b, s.Job...), '/'), s.Group...), '/')
	b = strconv.AppendInt(b, int64(s.From), 10)
	if s.System {
		b = append(append(b, '@'), s.Region...)
	}
	return b
}

// regionKey returns the store key of a region.
func regionKey(name string) string { return RegionPrefix + name }

func originKey(domain string) string { return originPrefix + domain }

// CheckpointKey returns the store key of one record of a region's checkpoint.
func CheckpointKey(region string, number int) string {
	return CheckpointPrefix + region + "/" + strconv.Itoa(number)
}

// newRecord returns an empty message of the kind that is stored under a key. It returns nil for
// keys that the state does not load (elections, idempotency, audit).
func newRecord(key string) proto.Message {
	switch {
	case strings.HasPrefix(key, jobPrefix), strings.HasPrefix(key, HealthyPrefix):
		return new(nusav1.JobRecord)
	case strings.HasPrefix(key, slotPrefix):
		return new(nusav1.Slot)
	case strings.HasPrefix(key, RegionPrefix):
		return new(nusav1.Region)
	case strings.HasPrefix(key, resultPrefix):
		return new(nusav1.ResultRecord)
	case strings.HasPrefix(key, CheckpointPrefix):
		return new(nusav1.CheckpointRecord)
	case strings.HasPrefix(key, originPrefix):
		return new(nusav1.OriginRecord)
	case strings.HasPrefix(key, webhookPrefix):
		return new(nusav1.WebhookRecord)
	case strings.HasPrefix(key, progressPrefix):
		return new(nusav1.WebhookProgress)
	case strings.HasPrefix(key, rolloutPrefix):
		return new(nusav1.RolloutRecord)
	case strings.HasPrefix(key, attemptsPrefix):
		return new(nusav1.AttemptsRecord)
	case key == leadershipKey:
		return new(nusav1.LeadershipRecord)
	case key == authKey:
		return new(nusav1.AuthSet)
	}
	return nil
}

// formatProto is the format byte of a value that is a protobuf message.
const formatProto = 1

// ErrFormat says that a newer version of Nusa, or a foreign program, wrote a value.
var ErrFormat = errors.New("unknown record format")

// Encode returns the stored form of a record. Equal records have equal bytes.
func Encode(m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend([]byte{formatProto}, m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return b, nil
}

// Decode reads a stored value into a message of its kind.
func Decode(kv store.KV, m proto.Message) error {
	if len(kv.Value) == 0 || kv.Value[0] != formatProto {
		return fmt.Errorf("%s: %w; was it written by a newer version?", kv.Key, ErrFormat)
	}
	if err := proto.Unmarshal(kv.Value[1:], m); err != nil {
		return fmt.Errorf("%s: %w: %w", kv.Key, ErrFormat, err)
	}
	return nil
}

// Compared are the prefixes of the records that HeldRevision knows.
var Compared = [...]string{RegionPrefix, jobPrefix, slotPrefix}

// HeldRevision returns the revision of a record that the state has; 0: it has none. The lock is held.
func HeldRevision(st *State, key string) int64 {
	switch {
	case strings.HasPrefix(key, jobPrefix):
		if j := st.Jobs[jobOfKey(key, jobPrefix)]; j != nil && j.Record != nil {
			return j.Revision
		}
	case strings.HasPrefix(key, slotPrefix):
		k := jobOfKey(key, slotPrefix)
		k.Name, _, _ = strings.Cut(k.Name, "/")
		if j := st.Jobs[k]; j != nil {
			return j.slotRevision(key[len(slotPrefix):])
		}
	case strings.HasPrefix(key, RegionPrefix):
		if r := st.Regions[key[len(RegionPrefix):]]; r != nil {
			return r.Revision
		}
	}
	return 0
}

// HeldKeys calls visit for each record that HeldRevision knows, with its revision. It holds the lock for one
// job at a time.
func HeldKeys(st *State, visit func(key string, revision int64)) {
	st.Lock()
	jobs := slices.Collect(maps.Keys(st.Jobs))
	for name, r := range st.Regions {
		visit(regionKey(name), r.Revision)
	}
	st.Unlock()
	for _, k := range jobs {
		st.Lock()
		if j := st.Jobs[k]; j != nil {
			if j.Record != nil {
				visit(k.recordKey(), j.Revision)
			}
			for s := range j.Slots.All() {
				visit(slotKey(&s), s.Revision)
			}
		}
		st.Unlock()
	}
}

// Reload changes the state to what the store has under a key. An empty kv: the store does not have the
// key. A request of the Committer calls it, so that no transaction is in flight.
func Reload(st *State, key string, kv store.KV) error {
	if kv.ModRevision == 0 {
		st.apply(key, nil, st.Revision)
		return nil
	}
	r := record{kv: kv}
	if err := decodeOne(&r, nil); err != nil {
		return err
	}
	st.apply(key, r.value, kv.ModRevision)
	return nil
}

// RepeatOrders sends a region orders again, and removes others again. The lock is held.
func RepeatOrders(r *Region, orders, removals []string) {
	at := r.Orders.Position().Sequence
	for _, key := range orders {
		if o, ok := r.Orders.Get(key); ok {
			o.echo = false // the region may lack the spec
			r.Orders.PutAt(at, key, o)
		}
	}
	for _, key := range removals {
		if _, ok := r.Orders.Get(key); !ok { // the outbox sends the removal of what it had
			r.Orders.PutAt(at, key, Order{})
			r.Orders.DeleteAt(at, key)
		}
	}
	r.Wake()
}

// TemplateLevel is the feature level from which servers begin the runs of schedules. An earlier server
// would run such a job itself.
const TemplateLevel = 4

// AttemptsLevel is the feature level from which servers store how many attempts instances have used, and
// send it to the next region. Under an earlier server, instances that go from region to region would never
// use up their attempts.
const AttemptsLevel = 12

// WorkflowLevel is the feature level from which servers run workflows.
const WorkflowLevel = 7

// OutputLevel is the feature level from which servers know the outputs of steps of workflows.
const OutputLevel = 9

// StepNeedsLevel is the feature level from which servers know the semaphores and the data of steps.
const StepNeedsLevel = 13

// InlineLevel is the feature level from which servers know inline workflows, and workflows with `parameterized`.
const InlineLevel = 14

// ScheduledLevel is the feature level from which servers begin the runs of workflows with a schedule.
const ScheduledLevel = 10

// NestedLevel is the feature level from which servers know steps that run another workflow.
const NestedLevel = 11

// MaxTemplates bounds the jobs that begin runs.
const MaxTemplates = 10_000

// Templates are the jobs that begin runs, which are jobs of their own: see job.IsTemplate. The lock of
// the State guards them.
type Templates struct {
	// Lines has each job, with one line about it for lists.
	Lines map[JobKey]string
	// changed are these jobs, and runs, that have changed since TakeTemplates returned them last.
	changed JobSet
	// Wake is notified when one of them has changed.
	Wake notify.Signal
	// steps are the jobs of the steps of workflows that have changed since TakeSteps returned them last, and
	// StepWake is notified when one of them has changed.
	steps    JobSet
	StepWake notify.Signal
	// Semaphores has the units of each semaphore of steps of workflows.
	Semaphores map[JobKey]int32
}

// noteTemplate notes a stored job that begins runs, or one that no longer does. The lock is held.
func noteTemplate(st *State, k JobKey, rec *Record) {
	line, was := st.Templates.Lines[k]
	switch {
	case rec.Template():
		st.Templates.Lines[k] = line
	case was:
		delete(st.Templates.Lines, k)
	default:
		return
	}
	st.Templates.add(k)
}

// noteRun notes a change of a job that may be a run, or begin runs. The lock is held.
func noteRun(st *State, k JobKey) {
	_, is := st.Templates.Lines[k]
	if IsStep(k) {
		st.Templates.steps[k] = struct{}{}
		st.Templates.StepWake.Notify()
		return
	}
	if is || strings.IndexByte(k.Name, job.RunMark) > 0 {
		st.Templates.add(k)
	}
}

func (x *Templates) add(k JobKey) {
	x.changed[k] = struct{}{}
	x.Wake.Notify()
}

// TakeTemplates returns the jobs that begin runs, and the runs, that have changed since it returned them
// last. One caller may take them. The lock is held.
func TakeTemplates(st *State) JobSet {
	out := st.Templates.changed
	st.Templates.changed = JobSet{}
	return out
}

// Template reports whether the job begins runs, which are jobs of their own, and has no instances itself.
func (r *Record) Template() bool { return r != nil && r.spec.template }

// Scheduled reports whether the job has a schedule.
func (r *Record) Scheduled() bool { return r != nil && r.spec.scheduled }

// IsStep reports whether a job is that of a step of a workflow, by its name.
func IsStep(k JobKey) bool {
	at := strings.IndexByte(k.Name, job.RunMark)
	return at > 0 && strings.Contains(k.Name[at:], job.StepMark)
}

// TakeSteps is TakeTemplates for the jobs of the steps of workflows.
func TakeSteps(st *State) JobSet {
	out := st.Templates.steps
	st.Templates.steps = JobSet{}
	return out
}

const (
	// OutputKind is the kind of the records of outputs: see OtherKey. The name of a record is the job's
	// key, the group and the lowest index.
	OutputKind = "workflow-outputs"
	// MaxOutput bounds an output, in bytes.
	MaxOutput = 16 << 10
)

// PutOutput stores the output in a region's answer about the job of a step of a workflow.
func PutOutput(t *Tx, k JobKey, a *nusav1.SlotAnswer) error {
	if a.GetOutput() == "" || len(a.GetOutput()) > MaxOutput || !job.OfStep(k.Name) {
		return nil
	}
	key := OtherKey(OutputKind, fmt.Sprintf("%s/%s/%d", k, a.GetGroup(), a.GetFrom()))
	return PutOther(t, key, &nusav1.WorkflowOutputRecord{Group: a.GetGroup(), From: a.GetFrom(), Output: a.GetOutput()})
}
