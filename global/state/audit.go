package state

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/idempotency"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const auditTTL = 30 * 24 * time.Hour

// ErrAnswered ends a request whose idempotency key was used before: State.Answers has the first
// response.
var ErrAnswered = errors.New("the idempotency key was used before")

// RecordAnswer stores the response to an idempotency key together with the changes of the
// request. It returns ErrAnswered when the key is used.
func (t *Tx) RecordAnswer(key string, fingerprint []byte, resp *nusav1.SubmitResponse) error {
	if _, used := t.find(idemPrefix + key); used || t.State.Answers.Known(key) {
		return ErrAnswered
	}
	rec := &nusav1.IdempotencyRecord{Fingerprint: fingerprint, Response: proto.CloneOf(resp)}
	return t.putNew(idemPrefix+key, rec, idempotency.TTL)
}

// ForgetAnswers removes idempotency records.
func (t *Tx) ForgetAnswers(keys []string) error {
	for _, key := range keys {
		if err := t.deleteUnchecked(idemPrefix + key); err != nil {
			return err
		}
	}
	return nil
}

// Audit stores who changed what, for a month. The key holds a number, so changes
// within one tick of the clock get distinct keys, also in several transactions. A
// repeated key would refuse the whole change.
func (t *Tx) Audit(kind, subject, message string) error {
	now := time.Now()
	t.State.audits++
	key := fmt.Sprintf("%s%020d-%s-%06d", AuditPrefix, now.UnixNano(), t.State.Epoch, t.State.audits)
	return t.putNew(key, &nusav1.Event{Time: timestamppb.New(now), Type: kind, Subject: subject, Message: message}, auditTTL)
}
