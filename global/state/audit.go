package state

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/idempotency"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// AuditAge is how long audit records are stored. They are removed earlier when later records take
// AuditBytes.
const AuditAge, AuditBytes = 30 * 24 * time.Hour, 64 << 20

// ErrAnswered ends a request whose idempotency key was used before. State.Answers holds the
// response to the first request.
var ErrAnswered = errors.New("the idempotency key was used before")

// RecordAnswer stores the response to an idempotency key together with the changes of the request.
// It returns ErrAnswered when the key was used before.
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

// auditBytes is the approximate size of an audited change in a transaction, without its texts.
const auditBytes = 32

// Audit stores who changed what. All changes of a transaction share one record.
func (t *Tx) Audit(kind, subject, message string) error {
	t.audit = append(t.audit, &nusav1.Event{
		Time: timestamppb.New(time.Now()), Type: kind, Subject: strings.ToValidUTF8(subject, "?"), Message: strings.ToValidUTF8(message, "?"),
	})
	t.size += auditSize(t.audit[len(t.audit)-1])
	return nil
}

func auditSize(e *nusav1.Event) int {
	return len(e.GetType()) + len(e.GetSubject()) + len(e.GetMessage()) + auditBytes
}

// sealAudit puts the record of the audited changes. Its key contains the epoch and a number, so
// transactions within one tick of the clock have distinct keys.
func (t *Tx) sealAudit() {
	if len(t.audit) == 0 {
		return
	}
	t.State.audits++
	key := fmt.Sprintf("%s-%s-%06d", t.auditTime(), t.State.Epoch, t.State.audits)
	_ = t.putUnchecked(key, &nusav1.AuditRecord{Events: t.audit}) // cannot fail: Audit takes valid texts only
}

// ForgetAudit removes the audit records with keys below before. It keeps those of the present
// moment, because a transaction must not remove a record that it writes.
func (t *Tx) ForgetAudit(before string) error {
	if t.State.Leadership.GetConflict() != nil {
		return ErrConflict
	}
	before = min(before, t.auditTime())
	t.State.Trail.Removed(before)
	return t.set(txChange{key: AuditPrefix, end: before, unchecked: true})
}

// auditTime returns the beginning of an audit key for now. It never goes back, even if the clock
// was set back.
func (t *Tx) auditTime() string {
	st := t.State
	st.audited = max(st.audited, AuditKey(time.Now()))
	return st.audited
}

// AuditKey returns the beginning of the keys of the audit records that are written at the
// given time.
func AuditKey(at time.Time) string { return fmt.Sprintf("%s%020d", AuditPrefix, at.UnixNano()) }
