package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Errors that callers distinguish. Implementations wrap them, and add the operation and the key.
var (
	// ErrCompareFailed: a compared revision differs, so nothing was written.
	ErrCompareFailed = errors.New("compare failed")
	// ErrNoQuorum: the store did not respond in time. The outcome of a transaction with this error
	// is unknown: it may have been applied.
	ErrNoQuorum = errors.New("no quorum")
	// ErrTooLarge: the transaction exceeds MaxOps or MaxTxnBytes.
	ErrTooLarge = errors.New("transaction too large")
	// ErrCompacted: the requested revision was compacted, so the caller must list again.
	ErrCompacted = errors.New("revision compacted")
	// ErrFull: the store has no space for the write. The outcome of the transaction is unknown.
	ErrFull = errors.New("the store is full")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store closed")
)

const (
	// MaxTxnOps is etcd's default limit (--max-txn-ops). It applies separately to the compares and
	// to the writes of a transaction. Every store accepts this many.
	MaxTxnOps = 128
	// memberTxnOps is the limit of the embedded member. One transaction of many writes costs far
	// less than many small ones.
	memberTxnOps = 512
	// MaxTxnBytes is etcd's default limit for a request, minus a margin for the framing.
	MaxTxnBytes = 1536*1024 - 16*1024
	// DefaultQuota is the default of EtcdConfig.Quota, in bytes.
	DefaultQuota = 8 << 30
	// PageSize is the number of keys that the first request of a List reads.
	PageSize = 128
)

// KV is one stored key with its value.
type KV struct {
	Key   string
	Value []byte
	// CreateRevision is the revision of the write that created the key. ModRevision is the revision
	// of the latest write.
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

// Compare is a condition of a transaction: if it does not hold, the transaction is not applied.
// Revision 0 means that the key does not exist.
type Compare struct {
	Key      string
	Target   Target
	Revision int64
}

// Mod compares the revision of a key's latest write; 0: the key must not exist.
func Mod(key string, revision int64) Compare {
	return Compare{Key: key, Target: TargetMod, Revision: revision}
}

// Create compares the revision at which a key was created; 0: the key must not exist.
func Create(key string, revision int64) Compare {
	return Compare{Key: key, Target: TargetCreate, Revision: revision}
}

// Op is one write of a transaction. A transaction may write a key only once.
type Op struct {
	Key    string
	Value  []byte
	Delete bool
	// End, with Delete, makes the Op remove all keys from Key on and before End. "": only Key.
	End string
	// TTL > 0: the key expires no sooner than TTL and no later than about TTL × 13/12 after the
	// write, because keys with the same TTL share leases.
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

// DeleteRange removes the keys from `from` on and before `before`. No other operation of the
// transaction may name one of these keys.
func DeleteRange(from, before string) Op { return Op{Key: from, End: before, Delete: true} }

// Event is one change that a watch received.
type Event struct {
	KV
	// Deleted: the key was deleted or has expired. Value is empty, and ModRevision is the revision
	// of the removal.
	Deleted bool
}

// Store holds keys. All methods are safe for concurrent use, and end when ctx ends. If a deadline
// passes without a response, they return ErrNoQuorum.
type Store interface {
	// Get returns a key and the store's revision. ok is false if the key does not exist. The read
	// is linearizable.
	Get(ctx context.Context, key string) (kv KV, ok bool, revision int64, err error)
	// List calls visit for each key under a prefix, in the order of the keys. All keys are as of
	// the revision that List returns. It reads page by page. An error of visit ends the list.
	List(ctx context.Context, prefix string, visit func(KV) error) (revision int64, err error)
	// Range is List for the keys from `from` on and before `end`.
	Range(ctx context.Context, from, end string, visit func(KV) error) (revision int64, err error)
	// Txn applies all ops if all compares hold, and returns the revision of the write. Otherwise it
	// returns ErrCompareFailed.
	Txn(ctx context.Context, compares []Compare, ops []Op) (revision int64, err error)
	// MaxOps returns how many operations, and how many compares, a transaction may have.
	MaxOps() int
	// Raise is a Txn after which its own revision, and the revision of every later write, is
	// greater than above. Keys that were written before keep their revisions. Raise is for a store
	// that was restored from an old copy, which would otherwise use later revisions twice. Another
	// client learns of the raise at the latest when it is elected.
	Raise(ctx context.Context, above int64, compares []Compare, ops []Op) (revision int64, err error)
	// Surplus returns how many entries the log has beyond the revisions. The number never decreases
	// unless the store was restored from a snapshot.
	Surplus(ctx context.Context) (Surplus, error)
	// Watch sends the changes under a prefix after a revision, in order. One slice has all changes
	// of one or several store revisions. Watch runs until ctx ends or an error occurs
	// (ErrCompacted, ErrClosed), which it returns. send must not block for long.
	Watch(ctx context.Context, prefix string, after int64, send func([]Event) error) error
	// Campaign waits until this candidate is elected under the prefix. Leader returns value to
	// other servers. The election ends if the candidate has not renewed it for ttl.
	Campaign(ctx context.Context, prefix, value string, ttl time.Duration) (Election, error)
	// Leader returns the key of the elected candidate. ok is false if there is none.
	Leader(ctx context.Context, prefix string) (kv KV, ok bool, err error)
	// Close ends all operations. Campaigns and watches return ErrClosed.
	Close() error
}

// Election is a leadership that is held.
type Election interface {
	// Guard returns the compare that every write of the leader must have. It holds as long as this
	// candidate is elected.
	Guard() Compare
	// Lost returns a channel that is closed when the leadership is lost, or cannot be verified any
	// more.
	Lost() <-chan struct{}
	// Renew verifies the leadership. If it succeeds, no other candidate is elected until the ttl
	// has passed since the beginning of the call, unless another process removes the candidate's
	// key. The key is renewed without Renew too; Renew is for callers that must know until when
	// they lead. ErrCompareFailed: the key was removed.
	Renew(ctx context.Context) error
	// Resign gives up the leadership immediately, so that a successor need not wait for the ttl.
	Resign(ctx context.Context) error
}

// checkTxn refuses the transactions that etcd would refuse, for both implementations of Store.
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
