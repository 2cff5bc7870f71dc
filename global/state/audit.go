package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	idempotencyTTL = 24 * time.Hour
	auditTTL       = 30 * 24 * time.Hour
	// maxRecentKeys is how many idempotency keys are remembered after their
	// commit: enough for requests that looked their key up before it.
	maxRecentKeys = 16_384
)

// ErrAnswered ends a request whose idempotency key was used before: FindAnswer
// returns the first response.
var ErrAnswered = errors.New("the idempotency key was used before")

// FindAnswer returns the response to the request that used an idempotency key
// before, nil when the key is new. It returns an error when the fingerprint is
// that of another request.
func FindAnswer(ctx context.Context, s store.Store, key string, fingerprint []byte) (*nusav1.SubmitResponse, error) {
	kv, ok, _, err := s.Get(ctx, idemPrefix+key)
	if err != nil || !ok {
		return nil, err
	}
	rec := new(nusav1.IdempotencyRecord)
	if err := Decode(kv, rec); err != nil {
		return nil, err
	}
	if !bytes.Equal(rec.GetFingerprint(), fingerprint) {
		return nil, status.Errorf(codes.AlreadyExists, "idempotency key %q was used for another request", key)
	}
	if rec.GetResponse().GetRevision() == 0 {
		rec.Response.Revision = kv.ModRevision
	}
	return rec.GetResponse(), nil
}

// RecordAnswer stores the response to an idempotency key together with the
// changes of the request. It returns ErrAnswered when the key is used.
func (t *Tx) RecordAnswer(key string, fingerprint []byte, resp *nusav1.SubmitResponse) error {
	storeKey := idemPrefix + key
	if _, used := t.find(storeKey); used || t.State.answers.has(storeKey) {
		return ErrAnswered
	}
	return t.putNew(storeKey, &nusav1.IdempotencyRecord{Fingerprint: fingerprint, Response: proto.CloneOf(resp)}, idempotencyTTL)
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

// recentKeys remembers the latest keys, at most maxRecentKeys.
type recentKeys struct {
	keys  map[string]struct{}
	order []string
}

func (s *recentKeys) has(key string) bool { _, ok := s.keys[key]; return ok }

func (s *recentKeys) add(key string) {
	if s.keys == nil {
		s.keys = map[string]struct{}{}
	}
	s.keys[key] = struct{}{}
	s.order = append(s.order, key)
	if len(s.order) > maxRecentKeys {
		delete(s.keys, s.order[0])
		s.order = s.order[1:]
	}
}
