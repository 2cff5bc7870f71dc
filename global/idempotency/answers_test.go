package idempotency

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const prefix = "/idempotency/"

// server is an active server with its answers and its store.
type server struct {
	t *testing.T
	store.Store
	*Answers
	now   time.Duration
	reads int
}

func (s *server) Get(ctx context.Context, key string) (store.KV, bool, int64, error) {
	s.reads++
	return s.Store.Get(ctx, key)
}

// begin begins a term over a store.
func begin(t *testing.T, over store.Store) *server {
	s := &server{t: t, Store: over}
	s.Answers = New(Config{
		Prefix: prefix, Clock: func() time.Duration { return s.now },
		Decode: func(kv store.KV, rec *nusav1.IdempotencyRecord) error { return proto.Unmarshal(kv.Value, rec) },
	})
	return s
}

func fingerprint(of string) []byte { return fmt.Appendf(nil, "%-32s", of) }

// record stores an answer, as the committer does.
func (s *server) record(key string, version int64) {
	s.t.Helper()
	rec := &nusav1.IdempotencyRecord{Fingerprint: fingerprint(key), Response: &nusav1.SubmitResponse{Version: version}}
	value, err := proto.Marshal(rec)
	if err != nil {
		s.t.Fatal(err)
	}
	revision, err := s.Txn(s.t.Context(), []store.Compare{store.Mod(prefix+key, 0)}, []store.Op{store.Put(prefix+key, value)})
	if err != nil {
		s.t.Fatal(err)
	}
	s.Apply(key, rec, revision)
}

// drop removes records from the store.
func (s *server) drop(keys ...string) {
	s.t.Helper()
	for _, key := range keys {
		if _, err := s.Txn(s.t.Context(), nil, []store.Op{store.Delete(prefix + key)}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// find describes what the answers know of a key, and how often they read the store.
func (s *server) find(key, of string) string {
	s.reads = 0
	resp, err := s.Find(s.t.Context(), s, key, fingerprint(of))
	text := "new"
	switch {
	case status.Code(err) == codes.AlreadyExists && strings.HasSuffix(err.Error(), "take a new key"):
		text = "another request"
	case err != nil:
		text = err.Error()
	case resp != nil:
		text = fmt.Sprintf("version %d", resp.GetVersion())
	}
	return fmt.Sprintf("%s, %d reads", text, s.reads)
}

func (s *server) load() {
	s.t.Helper()
	if err := s.Load(s.t.Context(), s); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) check(key, of, want string) {
	s.t.Helper()
	if got := s.find(key, of); got != want {
		s.t.Errorf("key %s for %s: %s, want %s", key, of, got, want)
	}
}

// TestFind: a key of this term costs no read. A key of an earlier term costs one read until the
// keys of earlier terms are loaded. The store decides about a key that is old or was used for
// another request.
func TestFind(t *testing.T) {
	mem := store.NewMemory().Client()
	defer mem.Close()
	first := begin(t, mem)
	first.load()
	first.check("a", "a", "new, 0 reads")
	first.record("a", 1)
	first.record("b", 2)
	first.check("a", "a", "version 1, 0 reads")
	first.check("a", "b", "another request, 1 reads")

	s := begin(t, mem)
	s.check("a", "a", "version 1, 1 reads")
	s.check("c", "c", "new, 1 reads")
	s.record("c", 3)
	s.check("c", "c", "version 3, 0 reads")
	s.load()
	for key, version := range map[string]int{"a": 1, "b": 2, "c": 3} {
		s.check(key, key, fmt.Sprintf("version %d, 0 reads", version))
	}
	s.check("d", "d", "new, 0 reads")

	s.drop("a", "b")
	s.check("a", "a", "version 1, 0 reads") // the server may remember a key for longer than the store
	s.check("a", "x", "new, 1 reads")
	s.check("a", "a", "new, 0 reads")
	s.now += TTL
	s.check("b", "b", "new, 1 reads")
	s.check("c", "c", "version 3, 1 reads")
	if s.Known("a") || s.Known("b") || !s.Known("c") {
		t.Error("what the store has dropped is still known")
	}
}

// TestOldest: the oldest keys are removed first, also across a change of terms, and no more than
// needed.
func TestOldest(t *testing.T) {
	const keys, left = 100, 30
	mem := store.NewMemory().Client()
	defer mem.Close()
	s := begin(t, mem)
	name := func(i int) string { return fmt.Sprintf("key-%03d", keys-i) } // the store lists them newest first
	for i := range keys / 2 {
		s.record(name(i), 1)
	}
	if got := s.Oldest(0, keys); got != nil {
		t.Errorf("%d keys before all are loaded", len(got))
	}
	s = begin(t, mem)
	for i := keys / 2; i < keys; i++ {
		s.record(name(i), 1)
	}
	s.load()
	each := s.bytes / keys
	var gone []string
	for {
		oldest := s.Oldest(left*each, 7)
		if len(oldest) == 0 {
			break
		}
		s.drop(oldest...)
		for _, key := range oldest {
			s.Apply(key, nil, 0)
		}
		gone = append(gone, oldest...)
	}
	var want []string
	for i := range keys - left {
		want = append(want, name(i))
	}
	if !slices.Equal(gone, want) || len(s.byKey) != left || s.bytes != left*each || len(s.order) != left {
		t.Errorf("%d are gone, %d are left with %d bytes, %d in order", len(gone), len(s.byKey), s.bytes, len(s.order))
	}
	s.record(name(0), 2)
	if got := s.Oldest(each, keys); len(got) != left || slices.Contains(got, name(0)) {
		t.Errorf("%d keys are older than the one that was used again: %v", len(got), got)
	}
}
