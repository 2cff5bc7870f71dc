package state

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/idempotency"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/auditwire"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
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

// auditBytes is the approximate size of an entry in a transaction, without its texts. auditWrites
// is how many keys the entries of a transaction take.
const auditBytes, auditWrites = 32, 2

// Audit adds an entry to the audit trail. It is stored with the changes of the transaction, or not
// at all. All entries of a transaction share one record. The caller of the entry is that of the
// request. A request without a caller is one of this server.
func (t *Tx) Audit(e audit.Entry) error {
	e = e.By(t.by)
	if e.Who == "" && e.Method == "" {
		e.Who = t.State.Self
	}
	return t.AuditOther(e)
}

// AuditOther is Audit for an entry that has its caller already.
func (t *Tx) AuditOther(e audit.Entry) error {
	e.Time = time.Now()
	if e.Outcome == "" {
		e.Outcome = audit.Done
	}
	e = e.Bounded()
	t.audit = append(t.audit, e)
	t.size += auditSize(&e)
	return nil
}

func auditSize(e *audit.Entry) int {
	return len(e.Who) + len(e.From) + len(e.Method) + len(e.Namespace) + len(e.Name) + len(e.Region) + len(e.Request) + len(e.Reason) +
		len(e.Before) + len(e.After) + auditBytes
}

// sealAudit puts the record of the entries, and the end of the trail. The key of the record
// contains the epoch and a number, so transactions within one tick of the clock have distinct keys.
func (t *Tx) sealAudit() error {
	if len(t.audit) == 0 {
		return nil
	}
	st := t.State
	st.audits++
	key := fmt.Sprintf("%s-%s-%06d", t.auditTime(), st.Epoch, st.audits)
	rec, tree := auditwire.Pack(st.AuditTree, t.audit)
	if err := t.putUnchecked(key, rec); err != nil {
		return err
	}
	return t.set(txChange{key: auditStateKey, msg: &nusav1.AuditState{Tree: auditwire.FromTree(tree)}, known: st.auditRevision})
}

// loadAudit reads the end of the audit trail, so that it continues.
func loadAudit(ctx context.Context, st *State, s store.Store) error {
	kv, ok, _, err := s.Get(ctx, auditStateKey)
	if err != nil || !ok {
		return err
	}
	rec := new(nusav1.AuditState)
	if err := Decode(kv, rec); err != nil {
		return err
	}
	return applyAudit(st, rec, kv.ModRevision)
}

func applyAudit(st *State, rec *nusav1.AuditState, revision int64) error {
	tree, err := auditwire.Tree(rec.GetTree())
	if err != nil {
		return fmt.Errorf("%s: %w", auditStateKey, err)
	}
	st.AuditTree, st.auditRevision = tree, revision
	return nil
}

// AuditSigner returns the keys of the audit trail's checkpoints. The first call stores new ones.
func AuditSigner(ctx context.Context, s store.Store, c *Committer, federation string) (*nusav1.AuditKeys, error) {
	keys := new(nusav1.AuditKeys)
	kv, ok, _, err := s.Get(ctx, auditKeysKey)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the key of the audit trail: %w", err)
	case ok:
		return keys, Decode(kv, keys)
	}
	keys.Signer, keys.Verifier, err = audit.GenerateKey(rand.Reader, audit.GlobalTrail(federation))
	if err != nil {
		return nil, fmt.Errorf("make the key of the audit trail: %w", err)
	}
	_, err = c.Do(ctx, func(t *Tx) error {
		if _, again := t.find(auditKeysKey); again || t.State.auditKeys {
			return errAuditKeys
		}
		return t.set(txChange{key: auditKeysKey, msg: keys, unchecked: true})
	})
	if errors.Is(err, errAuditKeys) {
		return AuditSigner(ctx, s, c, federation)
	}
	return keys, err
}

// errAuditKeys says that another request has made the keys of the audit trail meanwhile.
var errAuditKeys = errors.New("the keys of the audit trail exist")

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

// AuditHash returns the hash of a record for an entry of the audit trail. It is empty for nil.
func AuditHash(m proto.Message) []byte {
	if m == nil || !m.ProtoReflect().IsValid() {
		return nil
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil // the record itself cannot be stored either
	}
	sum := sha256.Sum256(b)
	return sum[:]
}

// Keys of the records of the regions' audit trails.
const (
	ForwardedPrefix = root + "audit-regions/"
	CursorPrefix    = root + "audit-cursors/"
	// ForwardedEnd is the end of the keys with ForwardedPrefix.
	ForwardedEnd = root + "audit-regions0"
)

// ForwardedKey returns the key of a record of a region's trail.
func ForwardedKey(number int64) string { return fmt.Sprintf("%s%020d", ForwardedPrefix, number) }

// ForwardedNumber returns the number in the key of a record of a region's trail.
func ForwardedNumber(key string) (int64, error) {
	number, err := strconv.ParseInt(key[min(len(key), len(ForwardedPrefix)):], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", key, ErrFormat)
	}
	return number, nil
}

// CursorKey returns the key of a region's cursor.
func CursorKey(region string) string { return CursorPrefix + region }

// Forwarded is what a region has forwarded of its audit trail.
type Forwarded struct {
	Region string
	// Number is the number of the record. It is greater than those of all records before.
	Number  int64
	Entries []audit.Entry
	Before  audit.Tree
	Cursor  *nusav1.AuditCursor
	// Note is an entry for the trail of the global tier. It may be nil.
	Note *audit.Entry
}

// PutForwarded stores entries of a region's audit trail, and the cursor behind them. It returns
// about how many bytes the record takes; 0: there are no entries. Only one caller in a term may do
// this, because the keys are not compared.
func PutForwarded(t *Tx, f Forwarded) (bytes int64, err error) {
	if f.Note != nil {
		if err := t.Audit(*f.Note); err != nil {
			return 0, err
		}
	}
	if len(f.Entries) > 0 {
		rec, _ := auditwire.Pack(f.Before, f.Entries)
		rec.Region, rec.Branch = f.Region, f.Cursor.GetBranch()
		key := ForwardedKey(f.Number)
		if err := t.putUnchecked(key, rec); err != nil {
			return 0, err
		}
		ch, _ := t.find(key)
		bytes = int64(len(key) + len(ch.value))
	}
	return bytes, t.putUnchecked(CursorKey(f.Region), f.Cursor)
}

// ForgetForwarded removes records of regions' audit trails.
func ForgetForwarded(t *Tx, numbers []int64) error {
	for _, n := range numbers {
		if err := t.deleteUnchecked(ForwardedKey(n)); err != nil {
			return err
		}
	}
	return nil
}

// ForgetForwardedBefore removes the records of regions' audit trails with lower numbers.
func ForgetForwardedBefore(t *Tx, number int64) error {
	return t.set(txChange{key: ForwardedPrefix, end: ForwardedKey(number), unchecked: true})
}
