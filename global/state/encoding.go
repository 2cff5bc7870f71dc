package state

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// formatProto is the format byte of a value that is a protobuf message.
const formatProto = 1

// ErrFormat says that a value was written by a newer or a foreign program.
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

// encodeSpec returns a job's spec as regions get it.
func encodeSpec(rec *nusav1.JobRecord) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(rec.GetJob().GetSpec())
}

// RunOf returns the run of a job whose record has the given revision; 0 means the
// revision of the transaction that writes the record.
func RunOf(rec *nusav1.JobRecord, revision int64) int64 {
	if run := rec.GetJob().GetRun(); run != 0 {
		return run
	}
	return revision
}

// obsolete says that the work of a slot belongs to an earlier version that its
// group has replaced.
func obsolete(rec *nusav1.JobRecord, version int64, group string) bool {
	return version < rec.GetSince()[group]
}
