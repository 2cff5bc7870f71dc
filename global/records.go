package global

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Keys of the store. Names are validated (job, namespace, group and region
// names hold neither slash nor at-sign), so keys parse back.
const (
	root             = "/nusa/v1/"
	ClusterKey       = root + "cluster"
	ElectionPrefix   = root + "election/"
	jobPrefix        = root + "jobs/"
	SlotPrefix       = root + "slots/"
	regionPrefix     = root + "regions/"
	idemPrefix       = root + "idempotency/"
	resultPrefix     = root + "results/"
	HealthyPrefix    = root + "healthy/"
	CheckpointPrefix = root + "checkpoints/"
	AuditPrefix      = root + "audit/"
	originPrefix     = root + "origins/"
)

// formatProto is the format byte of a value that is a protobuf message.
const formatProto = 1

// ErrFormat: a value was written by a newer or a foreign program.
var ErrFormat = errors.New("unknown record format")

// JobKey names a job.
type JobKey struct{ Namespace, Name string }

func (k JobKey) String() string { return k.Namespace + "/" + k.Name }

func (k JobKey) RecordKey() string { return jobPrefix + k.String() }
func (k JobKey) ResultKey() string { return resultPrefix + k.String() }

// HealthyKey is where the latest version is that ran whole; see rollout.go.
func (k JobKey) HealthyKey() string { return HealthyPrefix + k.String() }

func KeyOf(spec *nusav1.JobSpec) JobKey { return JobKey{spec.GetNamespace(), spec.GetName()} }

func slotJob(s region.Slot) JobKey { return JobKey{s.Namespace, s.Job} }

func slotKey(s region.Slot) string { return SlotPrefix + s.Key() }

func RegionKey(name string) string { return regionPrefix + name }

func originKey(domain string) string { return originPrefix + domain }

func CheckpointKey(region string, chunk int) string {
	return CheckpointPrefix + region + "/" + strconv.Itoa(chunk)
}

// Encode makes a value. Marshalling is deterministic, so that equal records
// are equal bytes.
func Encode(m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend([]byte{formatProto}, m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return b, nil
}

// EncodeSpec is a job's spec as it travels to regions.
func EncodeSpec(rec *nusav1.JobRecord) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(rec.GetJob().GetSpec())
}

func Decode(kv store.KV, m proto.Message) error {
	if len(kv.Value) == 0 || kv.Value[0] != formatProto {
		return fmt.Errorf("%s: %w; was it written by a newer version?", kv.Key, ErrFormat)
	}
	if err := proto.Unmarshal(kv.Value[1:], m); err != nil {
		return fmt.Errorf("%s: %w: %w", kv.Key, ErrFormat, err)
	}
	return nil
}

// newRecord answers an empty message of the kind that a key holds; nil for
// keys that the state does not hold (elections, idempotency, audit).
func newRecord(key string) proto.Message {
	switch {
	case strings.HasPrefix(key, jobPrefix), strings.HasPrefix(key, HealthyPrefix):
		return new(nusav1.JobRecord)
	case strings.HasPrefix(key, SlotPrefix):
		return new(nusav1.Slot)
	case strings.HasPrefix(key, regionPrefix):
		return new(nusav1.Region)
	case strings.HasPrefix(key, resultPrefix):
		return new(nusav1.ResultRecord)
	case strings.HasPrefix(key, CheckpointPrefix):
		return new(nusav1.CheckpointRecord)
	case strings.HasPrefix(key, originPrefix):
		return new(nusav1.OriginRecord)
	}
	return nil
}

// RunOf is the run of a job whose record has that revision (0 = that of the
// transaction that writes it).
func RunOf(rec *nusav1.JobRecord, revision int64) int64 {
	if run := rec.GetJob().GetRun(); run != 0 {
		return run
	}
	return revision
}

// SlotFromProto reads a stored slot. The write that offered it could not know
// its own revision, so a generation of 0 is that of the record.
func SlotFromProto(key string, s *nusav1.Slot, revision int64) region.Slot {
	out := region.Slot{
		Namespace: s.GetNamespace(), Job: s.GetJob(), Group: s.GetGroup(),
		From: int(s.GetFrom()), To: int(s.GetTo()), Region: s.GetRegion(),
		System:     strings.Contains(key, "@"),
		State:      region.SlotState(EnumWord(s.GetState().String(), "SLOT_STATE_")),
		Desired:    region.Desired(EnumWord(s.GetDesired().String(), "SLOT_DESIRED_")),
		Generation: s.GetGeneration(), Revision: revision, JobVersion: s.GetJobVersion(), Run: s.GetRun(),
		Reason: ReasonFromProto(s.GetReason()), Message: s.GetMessage(), PlacedBecause: s.GetPlacedBecause(),
	}
	if out.Generation == 0 {
		out.Generation = revision
	}
	out.Hold, out.UnlessConnected = s.GetHold().AsDuration(), s.GetUnlessHeard()
	return out
}

func SlotToProto(s region.Slot) *nusav1.Slot {
	out := &nusav1.Slot{
		Namespace: s.Namespace, Job: s.Job, Group: s.Group,
		From: int32(s.From), To: int32(s.To), Region: s.Region,
		State:      nusav1.SlotState(enumValue(nusav1.SlotState_value, "SLOT_STATE_", string(s.State))),
		Desired:    nusav1.SlotDesired(enumValue(nusav1.SlotDesired_value, "SLOT_DESIRED_", string(s.Desired))),
		Generation: s.Generation, JobVersion: s.JobVersion, Run: s.Run,
		Reason: ReasonToProto(s.Reason), Message: s.Message, PlacedBecause: s.PlacedBecause,
		UnlessHeard: s.UnlessConnected,
	}
	if s.Hold > 0 {
		out.Hold = durationpb.New(s.Hold)
	}
	return out
}

// EnumWord is the word of the cores for a wire enum: lower case, no prefix.
func EnumWord(name, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(name, prefix))
}

func enumValue(values map[string]int32, prefix, word string) int32 {
	return values[prefix+strings.ToUpper(word)]
}

func ReasonFromProto(r nusav1.Reason) string {
	if r == nusav1.Reason_REASON_UNSPECIFIED {
		return ""
	}
	return EnumWord(r.String(), "REASON_")
}

func ReasonToProto(word string) nusav1.Reason {
	return nusav1.Reason(enumValue(nusav1.Reason_value, "REASON_", word))
}

const (
	// MaxMessage and MaxCounts bound what a region may say of a slot or a job: it
	// is stored.
	MaxMessage = 1024
	MaxCounts  = 64
)

// AnswerFromProto reads an answer, cut to the bounds.
func AnswerFromProto(a *nusav1.SlotAnswer) region.Answer {
	counts := a.GetCounts()
	counts = counts[:min(len(counts), MaxCounts)]
	return region.Answer{
		Namespace: a.GetNamespace(), Job: a.GetJob(), Group: a.GetGroup(),
		From: int(a.GetFrom()), To: int(a.GetTo()), Generation: a.GetGeneration(),
		State:  region.SlotState(EnumWord(a.GetState().String(), "SLOT_STATE_")),
		Reason: ReasonFromProto(a.GetReason()), Message: CutMessage(a.GetMessage()), Counts: CountsFromProto(counts),
	}
}

// CutMessage keeps what a region says within MaxMessage.
func CutMessage(message string) string {
	if len(message) > MaxMessage {
		message = strings.ToValidUTF8(message[:MaxMessage], "") + "…"
	}
	return message
}

func CountsFromProto(in []*nusav1.CountedReason) []region.CountedReason {
	out := make([]region.CountedReason, 0, len(in))
	for _, c := range in {
		out = append(out, region.CountedReason{
			Reason: ReasonFromProto(c.GetReason()), Count: int(c.GetCount()), Message: CutMessage(c.GetMessage()), What: c.GetWhat(),
		})
	}
	return out
}

func CountsToProto(in []region.CountedReason) []*nusav1.CountedReason {
	out := make([]*nusav1.CountedReason, 0, len(in))
	for _, c := range in {
		out = append(out, &nusav1.CountedReason{
			Reason: ReasonToProto(c.Reason), Count: int32(c.Count), Message: c.Message, What: c.What,
		})
	}
	return out
}
