package global

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const idempotencyKeys = "/nusa/v1/idempotency/"

// keyReads counts the reads of single idempotency records, and holds back the list of all of
// them until released is closed.
type keyReads struct {
	store.Store
	reads    atomic.Int32
	released chan struct{}
	listed   chan struct{} // closed after the first list
	once     sync.Once
}

func (s *keyReads) Get(ctx context.Context, key string) (store.KV, bool, int64, error) {
	if strings.HasPrefix(key, idempotencyKeys) {
		s.reads.Add(1)
	}
	return s.Store.Get(ctx, key)
}

func (s *keyReads) List(ctx context.Context, prefix string, visit func(store.KV) error) (int64, error) {
	if prefix != idempotencyKeys {
		return s.Store.List(ctx, prefix, visit)
	}
	select {
	case <-s.released:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer s.once.Do(func() { close(s.listed) })
	return s.Store.List(ctx, prefix, visit)
}

// countReads makes a server count its reads of idempotency records.
func countReads(held bool) (*keyReads, func(*Config)) {
	s := &keyReads{released: make(chan struct{}), listed: make(chan struct{})}
	if !held {
		close(s.released)
	}
	return s, func(c *Config) { s.Store, c.Store = c.Store, s }
}

// submitKeyed submits jobs by one stream. The responses are in order.
func (s *testServer) submitKeyed(reqs ...*nusav1.SubmitRequest) (out []*nusav1.SubmitManyResponse) {
	s.t.Helper()
	stream, err := s.jobs().SubmitMany(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	go func() {
		for _, r := range reqs {
			if stream.Send(proto.CloneOf(r)) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	for range reqs {
		resp, err := stream.Recv()
		if err != nil {
			s.t.Errorf("answer %d: %v", len(out), err)
			return out
		}
		out = append(out, resp)
	}
	return out
}

func keyed(from, to int) (out []*nusav1.SubmitRequest) {
	for i := from; i < to; i++ {
		out = append(out, &nusav1.SubmitRequest{Spec: testJob(fmt.Sprintf("job-%d", i), 1), IdempotencyKey: fmt.Sprintf("key-%d", i)})
	}
	return out
}

// same reports whether two lists of responses are equal. Nothing is submitted twice.
func same(t *testing.T, what string, first, again []*nusav1.SubmitManyResponse) {
	t.Helper()
	for i, a := range again {
		r := a.GetResponse()
		if a.GetCode() != 0 || r.GetVersion() != 1 || !r.GetChanged() || r.GetRevision() == 0 || r.GetRevision() != first[i].GetResponse().GetRevision() {
			t.Errorf("%s: answer %d is %v, the first %v", what, i, a, first[i])
			return
		}
	}
}

// TestKeysCostNoRead: the active server knows its own idempotency keys, and the keys of earlier
// terms once they are loaded. So a submit with a key reads nothing from the store.
func TestKeysCostNoRead(t *testing.T) {
	const jobs = 300
	f := newFederation()
	reads, count := countReads(false)
	s := f.start(t, "g1", count)
	<-reads.listed
	first := s.submitKeyed(keyed(0, jobs)...)
	same(t, "first", first, first)
	same(t, "again", first, s.submitKeyed(keyed(0, jobs)...))
	if n := reads.reads.Load(); n != 0 {
		t.Errorf("%d reads for %d submits", n, 2*jobs)
	}
	other := keyed(0, 1)[0]
	other.Spec = testJob("job-0", 2)
	if _, err := s.jobs().Submit(t.Context(), other); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the key for another request: %v", err)
	}
	s.stop()
	next, count := countReads(false)
	s = f.start(t, "g2", count)
	<-next.listed
	same(t, "after an election", first, s.submitKeyed(keyed(0, jobs)...))
	if _, err := s.jobs().Submit(t.Context(), other); status.Code(err) != codes.AlreadyExists {
		t.Errorf("after an election, the key for another request: %v", err)
	}
}

// TestKeysBeforeTheyAreLoaded: a new active server answers before it has loaded the keys of
// earlier terms.
func TestKeysBeforeTheyAreLoaded(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	first := s.submitKeyed(keyed(0, 20)...)
	s.stop()
	reads, hold := countReads(true)
	s = f.start(t, "g2", hold)
	all := s.submitKeyed(keyed(0, 40)...)
	same(t, "not loaded", first, all[:20])
	same(t, "new", all[20:], all[20:])
	same(t, "new keys again", all, s.submitKeyed(keyed(0, 40)...))
	other := keyed(30, 31)[0]
	other.Spec = testJob("job-30", 2)
	if _, err := s.jobs().Submit(t.Context(), other); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the key for another request: %v", err)
	}
	close(reads.released)
	<-reads.listed
	same(t, "loaded", all, s.submitKeyed(keyed(0, 40)...))
}

// TestKeysOnTwoStreams: two streams that submit the same keys at the same time get the same
// answers, also while the keys are not loaded.
func TestKeysOnTwoStreams(t *testing.T) {
	for name, held := range map[string]bool{"loaded": false, "not loaded": true} {
		t.Run(name, func(t *testing.T) {
			reads, count := countReads(held)
			s := newFederation().start(t, "g1", count)
			if !held {
				<-reads.listed
			}
			var got [2][]*nusav1.SubmitManyResponse
			var both sync.WaitGroup
			for i := range got {
				both.Go(func() { got[i] = s.submitKeyed(keyed(0, 300)...) })
			}
			both.Wait()
			same(t, "first stream", got[0], got[0])
			same(t, "second stream", got[0], got[1])
		})
	}
}
