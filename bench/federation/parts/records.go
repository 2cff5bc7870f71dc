package parts

import (
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Keys of the store, like those of a global server.
const (
	root         = "/nusa/v1/"
	leaderKey    = root + "leadership"
	regionPrefix = root + "regions/"
	jobPrefix    = root + "jobs/"
	slotPrefix   = root + "slots/"
	idemPrefix   = root + "idempotency/"
)

// logs are the prefixes of the audit log and of the log of events.
var logs = [...]string{root + "audit/", root + "events/"}

const (
	namespace    = "default"
	firstVersion = 1
	// format is the first byte of a stored record.
	format = 1
	// because stands for the text that says why a global server chose a region.
	because = "regions take turns; this text is about as long as those of a global server are"
	// recordBytes is about the size of a record without the spec.
	recordBytes = 256
	// idemBytes is the size of the record of an idempotency key.
	idemBytes = 48
	// auditBytes is the size of the audit entry of a job: who submitted it, when, and a hash of the
	// spec. eventBytes is the size of an event. Those of a global server are compressed.
	auditBytes, eventBytes = 90, 12
	// defaultsBytes is how much longer a spec becomes when a global server fills in the
	// defaults.
	defaultsBytes = 90
)

// The fields that are read of encoded specs, and those that are written around a spec.
const (
	specName    protowire.Number = 1
	specGroups  protowire.Number = 6
	entryKey    protowire.Number = 1
	entryValue  protowire.Number = 2
	groupCount  protowire.Number = 1
	recordJob   protowire.Number = 1
	jobSpec     protowire.Number = 1
	placeholder protowire.Number = 10_000 // unknown to readers
)

// readSpec returns the name of the job, the name of its first group, and the number of
// instances of that group.
func readSpec(spec []byte) (name, group string, count int) {
	entry := text(field(spec, specGroups))
	count = 1
	if n, size := protowire.ConsumeVarint(field(text(field(entry, entryValue)), groupCount)); size > 0 {
		count = int(n)
	}
	return string(text(field(spec, specName))), string(text(field(entry, entryKey))), count
}

// field returns the value of the first field that has the given number, or nil.
func field(message []byte, number protowire.Number) []byte {
	for len(message) > 0 {
		n, kind, tag := protowire.ConsumeTag(message)
		size := protowire.ConsumeFieldValue(n, kind, message[max(tag, 0):])
		if tag < 0 || size < 0 {
			return nil
		}
		if n == number {
			return message[tag : tag+size]
		}
		message = message[tag+size:]
	}
	return nil
}

// text returns a value of type bytes without its length.
func text(value []byte) []byte {
	out, _ := protowire.ConsumeBytes(value)
	return out
}

// jobRecord returns the stored record of a new job, and its spec in the length of a spec
// with defaults.
func jobRecord(given []byte) (record, spec []byte, err error) {
	spec = make([]byte, 0, len(given)+defaultsBytes+8)
	spec = protowire.AppendTag(append(spec, given...), placeholder, protowire.BytesType)
	spec = protowire.AppendBytes(spec, make([]byte, defaultsBytes))
	record, err = encode(&nusav1.JobRecord{Job: &nusav1.Job{Version: firstVersion, Submitted: timestamppb.Now()}})
	record = protowire.AppendTag(record, recordJob, protowire.BytesType)
	record = protowire.AppendVarint(record, uint64(protowire.SizeTag(jobSpec)+protowire.SizeBytes(len(spec))))
	return protowire.AppendBytes(protowire.AppendTag(record, jobSpec, protowire.BytesType), spec), spec, err
}

func regionRecord(h *nusav1.RegionHello) ([]byte, error) {
	return encode(&nusav1.Region{
		Definition: h.GetDefinition(), ClusterId: h.GetClusterId(), Incarnation: h.GetIncarnation(), Term: h.GetTerm(), FeatureLevel: h.GetFeatureLevel(),
	})
}

func newSlot(job, group string, from int32, region string) *nusav1.Slot {
	return &nusav1.Slot{
		Namespace: namespace, Job: job, Group: group, From: from, To: from + 1, Region: region, State: nusav1.SlotState_SLOT_STATE_OFFERED,
		Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN, JobVersion: firstVersion, PlacedBecause: because, RunBegins: true,
	}
}

func acceptedSlot(s *nusav1.Slot) *nusav1.Slot {
	out := newSlot(s.GetJob(), s.GetGroup(), s.GetFrom(), s.GetRegion())
	out.State, out.Generation, out.Run, out.RunBegins = nusav1.SlotState_SLOT_STATE_ACCEPTED, s.GetGeneration(), s.GetRun(), false
	return out
}

func slotKey(job, group string, from int32) string {
	return job + "/" + group + "/" + strconv.Itoa(int(from))
}

// encode returns the stored form of a record.
func encode(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(append(make([]byte, 0, recordBytes), format), m)
}
