// Package store is the small key-value contract that the global tier needs of
// etcd: revisions, transactions that compare them, pages, watches, keys that
// expire, and an election. It has two implementations, etcd and a twin in
// memory, and one contract suite over both.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Errors that callers tell apart. Implementations wrap them with what and
// where.
var (
	// ErrCompareFailed: a compared revision was another; nothing was written.
	ErrCompareFailed = errors.New("compare failed")
	// ErrNoQuorum: the store did not answer in time. A transaction that got
	// it is unknown: it may or may not have been applied.
	ErrNoQuorum = errors.New("no quorum, retry")
	// ErrTooLarge: the transaction exceeds MaxTxnOps or MaxTxnBytes.
	ErrTooLarge = errors.New("transaction too large")
	// ErrCompacted: the revision asked for is no longer held; list again.
	ErrCompacted = errors.New("revision compacted")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store closed")
)

const (
	// MaxTxnOps is etcd's default limit (--max-txn-ops), which applies to the
	// compares and to the writes of a transaction each.
	MaxTxnOps = 128
	// MaxTxnBytes is etcd's default limit on a request, less a margin for the
	// framing.
	MaxTxnBytes = 1536*1024 - 16*1024
	// PageSize is how many keys one List request of an implementation reads.
	PageSize = 500
)

// KV is one key as stored.
type KV struct {
	Key   string
	Value []byte
	// CreateRevision is that of the write that created the key, ModRevision
	// that of the latest write.
	CreateRevision int64
	ModRevision    int64
}

// Target is what a Compare looks at.
type Target uint8

// The targets of a Compare.
const (
	TargetMod Target = iota
	TargetCreate
)

// Compare must hold for a transaction to be applied. Revision 0 means that
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

// Op is one write of a transaction. A key may be written once in it.
type Op struct {
	Key    string
	Value  []byte
	Delete bool
	// TTL > 0: the key expires no sooner than TTL and no later than about
	// TTL × 13/12 after the write (keys of one TTL share leases).
	TTL time.Duration
}

// Put writes a key for ever.
func Put(key string, value []byte) Op { return Op{Key: key, Value: value} }

// PutTTL writes a key that expires.
func PutTTL(key string, value []byte, ttl time.Duration) Op {
	return Op{Key: key, Value: value, TTL: ttl}
}

// Delete removes a key; one that is not there is no error.
func Delete(key string) Op { return Op{Key: key, Delete: true} }

// Event is one change that a watch saw.
type Event struct {
	KV
	// Deleted: the key is gone (also when it expired); Value is empty and
	// ModRevision is that of the removal.
	Deleted bool
}

// Store keeps keys. All methods are safe for concurrent use and end with ctx;
// a deadline that passes without an answer is ErrNoQuorum.
type Store interface {
	// Get answers a key (ok false when it does not exist) and the store's
	// revision, linearizably.
	Get(ctx context.Context, key string) (kv KV, ok bool, revision int64, err error)
	// List calls visit for each key under a prefix in key order, all as of
	// the one revision that it answers. It reads pages of PageSize. An error
	// of visit ends it.
	List(ctx context.Context, prefix string, visit func(KV) error) (revision int64, err error)
	// Txn applies every op if every compare holds, else answers
	// ErrCompareFailed. The revision is that of the write.
	Txn(ctx context.Context, compares []Compare, ops []Op) (revision int64, err error)
	// Watch sends the changes under a prefix after a revision, in order, a
	// slice per store revision or several, until ctx ends or an error
	// (ErrCompacted, ErrClosed), which it returns. send must not block long.
	Watch(ctx context.Context, prefix string, after int64, send func([]Event) error) error
	// Campaign waits until this candidate is elected under the prefix. The
	// value is what Leader answers to others. The election ends by itself
	// when the store has not heard from the holder for ttl.
	Campaign(ctx context.Context, prefix, value string, ttl time.Duration) (Election, error)
	// Leader answers the value of the elected candidate; ok false when there
	// is none now.
	Leader(ctx context.Context, prefix string) (kv KV, ok bool, err error)
	// Close ends everything. Campaigns and watches return ErrClosed.
	Close() error
}

// Election is held leadership.
type Election interface {
	// Guard is the comparison that every write of the leader carries: it
	// holds as long as this candidate is the elected one.
	Guard() Compare
	// Lost is closed when leadership is lost, or can no longer be shown to be
	// held.
	Lost() <-chan struct{}
	// Renew shows that this candidate lives: when it succeeds, nobody else is
	// elected for the ttl from when the call began. What keeps the candidate's
	// key alive does so by itself; this is for who must know until when.
	Renew(ctx context.Context) error
	// Resign gives leadership up at once, so that a successor need not wait
	// for the ttl.
	Resign(ctx context.Context) error
}

// checkTxn refuses what etcd would refuse, the same on both implementations.
func checkTxn(compares []Compare, ops []Op) error {
	if n := len(ops); n > MaxTxnOps || len(compares) > MaxTxnOps {
		return fmt.Errorf("%w: %d operations and %d compares, at most %d each", ErrTooLarge, n, len(compares), MaxTxnOps)
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
