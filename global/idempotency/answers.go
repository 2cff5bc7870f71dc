package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// TTL is how long a key is remembered. A key is forgotten earlier when later keys take
	// MaxBytes.
	TTL = 24 * time.Hour
	// MaxBytes bounds the records in the store. Their copies here take about as much memory.
	MaxBytes = 64 << 20
	// recordBytes is the approximate size of a record without its key and warnings.
	recordBytes = 64
)

// Config holds the dependencies of Answers.
type Config struct {
	// Prefix is the prefix of the records' keys in the store.
	Prefix string
	Decode func(store.KV, *nusav1.IdempotencyRecord) error
	Clock  func() time.Duration
}

// Answers holds the responses to the idempotency keys that the store has, or had a while ago. Only
// the active server stores such records. So once all records are loaded, a key that is missing here
// is new, and the store need not be read. Safe for concurrent use.
type Answers struct {
	cfg Config

	mu    sync.Mutex
	byKey map[string]answer
	// order holds the keys, oldest first. Some of these keys may be removed already.
	order  []string
	bytes  int
	loaded bool
}

// answer is the response to a request.
type answer struct {
	fingerprint       [32]byte
	revision, version int64
	changed           bool
	warnings          []string
	// at is when this server learned the response.
	at time.Duration
}

// New returns Answers without any key.
func New(cfg Config) *Answers { return &Answers{cfg: cfg, byKey: map[string]answer{}} }

func (s *Answers) answerOf(rec *nusav1.IdempotencyRecord, revision int64) answer {
	r := rec.GetResponse()
	a := answer{
		revision: cmp.Or(r.GetRevision(), revision), version: r.GetVersion(), changed: r.GetChanged(), warnings: r.GetWarnings(),
		at: s.cfg.Clock(),
	}
	copy(a.fingerprint[:], rec.GetFingerprint())
	return a
}

func (a *answer) toProto() *nusav1.SubmitResponse {
	return &nusav1.SubmitResponse{Version: a.version, Revision: a.revision, Changed: a.changed, Warnings: slices.Clone(a.warnings)}
}

// size estimates the bytes of a record in the store.
func (a *answer) size(key string) int {
	n := len(key) + recordBytes
	for _, w := range a.warnings {
		n += len(w)
	}
	return n
}

// put adds a key. The lock is held.
func (s *Answers) put(key string, a answer) {
	s.remove(key)
	s.byKey[key], s.order = a, append(s.order, key)
	s.bytes += a.size(key)
}

// remove removes a key. The lock is held.
func (s *Answers) remove(key string) {
	if a, known := s.byKey[key]; known {
		s.bytes -= a.size(key)
		delete(s.byKey, key)
	}
}

// Apply takes a record that was written. rec is nil if the record was removed.
func (s *Answers) Apply(key string, rec *nusav1.IdempotencyRecord, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec == nil {
		s.remove(key)
		return
	}
	s.put(key, s.answerOf(rec, revision))
}

// Known reports whether a key was used before.
func (s *Answers) Known(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.byKey[key]
	return known
}

// Len returns the number of keys.
func (s *Answers) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byKey)
}

// Find returns the response to the earlier request with a key, or nil if the key is new. It returns
// an error if the fingerprint is that of another request. It reads the store only if the records of
// earlier terms are not loaded yet, if the store may have dropped the old record of the key, or if
// the fingerprint differs.
func (s *Answers) Find(ctx context.Context, from store.Store, key string, fingerprint []byte) (*nusav1.SubmitResponse, error) {
	s.mu.Lock()
	a, known := s.byKey[key]
	isNew := s.loaded && !known
	s.mu.Unlock()
	switch {
	case isNew:
		return nil, nil
	case known && s.cfg.Clock()-a.at < TTL && bytes.Equal(a.fingerprint[:], fingerprint):
		return a.toProto(), nil
	}
	kv, stored, _, err := from.Get(ctx, s.cfg.Prefix+key)
	if err != nil {
		return nil, err
	}
	if !stored {
		s.forget(key, a)
		return nil, nil
	}
	rec := new(nusav1.IdempotencyRecord)
	if err := s.cfg.Decode(kv, rec); err != nil {
		return nil, err
	}
	if !bytes.Equal(rec.GetFingerprint(), fingerprint) {
		return nil, status.Errorf(codes.AlreadyExists, "idempotency key %q was used for another request: take a new key", key)
	}
	found := s.answerOf(rec, kv.ModRevision)
	return found.toProto(), nil
}

// forget removes a key whose record the store has dropped, unless the key was used again meanwhile.
func (s *Answers) forget(key string, a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[key].revision == a.revision {
		s.remove(key)
	}
}

// Load reads the records of earlier terms. Apply may add records of this term meanwhile.
func (s *Answers) Load(ctx context.Context, from store.Store) error {
	type record struct {
		key string
		answer
	}
	var records []record
	_, err := from.List(ctx, s.cfg.Prefix, func(kv store.KV) error {
		rec := new(nusav1.IdempotencyRecord)
		if err := s.cfg.Decode(kv, rec); err != nil {
			return err
		}
		records = append(records, record{kv.Key[len(s.cfg.Prefix):], s.answerOf(rec, kv.ModRevision)})
		return nil
	})
	if err != nil {
		return fmt.Errorf("load the idempotency records: %w", err)
	}
	slices.SortFunc(records, func(a, b record) int { return cmp.Compare(a.revision, b.revision) })
	s.mu.Lock()
	defer s.mu.Unlock()
	ours, order := s.byKey, s.order
	s.byKey, s.order, s.bytes = make(map[string]answer, len(records)), nil, 0
	for _, r := range records {
		if _, later := ours[r.key]; !later {
			s.put(r.key, r.answer)
		}
	}
	for _, key := range order {
		if a, known := ours[key]; known {
			s.put(key, a)
		}
	}
	s.loaded = true
	return nil
}

// Oldest returns the oldest keys, at most n. After their removal at most this many bytes are
// left, unless n was too small. It returns none before all records are loaded.
func (s *Answers) Oldest(most, n int) (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.order) > 0 {
		if _, known := s.byKey[s.order[0]]; known {
			break
		}
		s.order = s.order[1:]
	}
	over := s.bytes - most
	for i := 0; s.loaded && over > 0 && len(keys) < n && i < len(s.order); i++ {
		if a, known := s.byKey[s.order[i]]; known {
			keys = append(keys, s.order[i])
			over -= a.size(s.order[i])
		}
	}
	return keys
}
