package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Errors that callers distinguish. Implementations wrap them with the operation
// and the key.
var (
	// ErrCompareFailed: a compared revision differs; nothing was written.
	ErrCompareFailed = errors.New("compare failed")
	// ErrNoQuorum: the store did not respond in time. The outcome of a
	// transaction that gets this error is unknown: it may have been applied.
	ErrNoQuorum = errors.New("no quorum")
	// ErrTooLarge: the transaction exceeds MaxOps or MaxTxnBytes.
	ErrTooLarge = errors.New("transaction too large")
	// ErrCompacted: the requested revision was compacted; list again.
	ErrCompacted = errors.New("revision compacted")
	// ErrFull: the store has no room for the write. The outcome of the transaction is
	// unknown.
	ErrFull = errors.New("the store is full")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store closed")
)

const (
	// MaxTxnOps is etcd's default limit (--max-txn-ops). It applies separately to
	// the compares and to the writes of a transaction. Every store takes as many.
	MaxTxnOps = 128
	// memberTxnOps is the limit of the embedded member: one transaction of many writes
	// costs far less than many of few.
	memberTxnOps = 512
	// MaxTxnBytes is etcd's default limit on a request, less a margin for the
	// framing.
	MaxTxnBytes = 1536*1024 - 16*1024
	// DefaultQuota is the most bytes in use of an embedded store without a setting.
	DefaultQuota = 8 << 30
	// PageSize is the number of keys that the first request of a List reads.
	PageSize = 128
)

// KV is one key as stored.
type KV struct {
	Key   string
	Value []byte
	// CreateRevision is the revision of the write that created the key,
	// ModRevision that of the latest write.
	CreateRevision int64
	ModRevision    int64
}

// Target is the revision that a Compare compares.
type Target uint8

// The targets of a Compare.
const (
	TargetMod Target = iota
	TargetCreate
)

// Compare must hold, or the transaction is not applied. Revision 0 means that
// the key does not exist.
type Compare struct {
	Key      string
	Target   Target
	Revision int64
}

// Mod compares the revision of a key's latest write; 0 = must not exist.
func Mod(key string, revision int64) Compare {
	return Compare{Key: key, Target: TargetMod, Revision: revision}
}

// Create compares the revision that created a key; 0 = must not exist.
func Create(key string, revision int64) Compare {
	return Compare{Key: key, Target: TargetCreate, Revision: revision}
}

// Op is one write of a transaction. A transaction may write a key once.
type Op struct {
	Key    string
	Value  []byte
	Delete bool
	// End: with Delete, all keys from Key on and before End are removed; "" = only Key.
	End string
	// TTL > 0: the key expires no sooner than TTL and no later than about
	// TTL × 13/12 after the write (keys of one TTL share leases).
	TTL time.Duration
}

// Put writes a key that does not expire.
func Put(key string, value []byte) Op { return Op{Key: key, Value: value} }

// PutTTL writes a key that expires.
func PutTTL(key string, value []byte, ttl time.Duration) Op {
	return Op{Key: key, Value: value, TTL: ttl}
}

// Delete removes a key. It is no error if the key does not exist.
func Delete(key string) Op { return Op{Key: key, Delete: true} }

// DeleteRange removes the keys from one on and before another. No other operation of the
// transaction may name a key among them.
func DeleteRange(from, before string) Op { return Op{Key: from, End: before, Delete: true} }

// Event is one change that a watch received.
type Event struct {
	KV
	// Deleted: the key was deleted or expired. Value is empty and ModRevision
	// is that of the removal.
	Deleted bool
}

// Store holds keys. All methods are safe for concurrent use and end with ctx. A
// deadline that passes without a response is ErrNoQuorum.
type Store interface {
	// Get returns a key (ok false if it does not exist) and the store's
	// revision, linearizably.
	Get(ctx context.Context, key string) (kv KV, ok bool, revision int64, err error)
	// List calls visit for each key under a prefix, in key order, all as of the
	// revision that it returns. It reads page by page. An error of visit ends the list.
	List(ctx context.Context, prefix string, visit func(KV) error) (revision int64, err error)
	// Txn applies every op if every compare holds, otherwise it returns
	// ErrCompareFailed. The revision is that of the write.
	Txn(ctx context.Context, compares []Compare, ops []Op) (revision int64, err error)
	// MaxOps is how many operations, and how many compares, a transaction takes.
	MaxOps() int
	// Raise is a Txn whose revision, and that of every later write, is greater than
	// above. Keys that were written before keep their revisions. It is for a store that
	// was restored from an old copy, which would use later revisions twice. Another
	// client knows of it at the latest when it is elected.
	Raise(ctx context.Context, above int64, compares []Compare, ops []Op) (revision int64, err error)
	// Watch sends the changes under a prefix after a revision, in order. One
	// slice has all changes of one or several store revisions. Watch runs until
	// ctx ends or an error occurs (ErrCompacted, ErrClosed), which it returns.
	// send must not block long.
	Watch(ctx context.Context, prefix string, after int64, send func([]Event) error) error
	// Campaign waits until this candidate is elected under the prefix. Leader
	// returns the value to other servers. The election ends by itself if the
	// candidate has not renewed it for ttl.
	Campaign(ctx context.Context, prefix, value string, ttl time.Duration) (Election, error)
	// Leader returns the value of the elected candidate; ok is false if there
	// is none.
	Leader(ctx context.Context, prefix string) (kv KV, ok bool, err error)
	// Close ends all operations. Campaigns and watches return ErrClosed.
	Close() error
}

// Election is a leadership that is held.
type Election interface {
	// Guard is the compare that every write of the leader carries: it holds as
	// long as this candidate is elected.
	Guard() Compare
	// Lost is closed when leadership is lost or cannot be verified any more.
	Lost() <-chan struct{}
	// Renew verifies the leadership: if it succeeds, no other candidate is
	// elected until the ttl has passed since the call began, unless another process
	// removes the candidate's key. The key is renewed without this call; Renew is for
	// callers that must know until when they lead. ErrCompareFailed: the key is gone.
	Renew(ctx context.Context) error
	// Resign gives up leadership at once, so that a successor does not have to
	// wait for the ttl.
	Resign(ctx context.Context) error
}

// checkTxn refuses transactions that etcd would refuse, for both
// implementations.
func checkTxn(most int, compares []Compare, ops []Op) error {
	if n := len(ops); n > most || len(compares) > most {
		return fmt.Errorf("%w: %d operations and %d compares, at most %d each", ErrTooLarge, n, len(compares), most)
	}
	size := 0
	seen := make(map[string]bool, len(ops))
	for _, op := range ops {
		size += len(op.Key) + len(op.Value) + 32
		if seen[op.Key] {
			return fmt.Errorf("key %q is written twice in one transaction", op.Key)
		}
		seen[op.Key] = true
	}
	for _, c := range compares {
		size += len(c.Key) + 32
	}
	if size > MaxTxnBytes {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, size, MaxTxnBytes)
	}
	return nil
}
