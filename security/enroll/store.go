package enroll

import (
	"context"
	"errors"

	"github.com/nusa-scheduler/nusa/security/audit"
)

// ErrChanged means that a record has another version than the caller has read.
var ErrChanged = errors.New("a record has changed meanwhile")

// Check is a condition of a change: the record of a key has this version. 0: it does not exist.
type Check struct {
	Key     string
	Version uint64
}

// Put is a record to write.
type Put struct {
	Key   string
	Value []byte
}

// Change is what one call writes: everything or nothing.
type Change struct {
	Checks  []Check
	Puts    []Put
	Deletes []string
	// Audit is the entry of the change in the audit trail, or nil. The store adds who makes the call.
	Audit *audit.Entry
}

// Store keeps the records of a tier: etcd at the global tier, the Raft log of a region. A read
// sees every earlier change that was answered.
type Store interface {
	// Get returns a record. Its version is 0 if it does not exist.
	Get(ctx context.Context, key string) (value []byte, version uint64, err error)
	// List calls visit for the records of a prefix, sorted by key. An error of visit ends the
	// list.
	List(ctx context.Context, prefix string, visit func(key string, value []byte, version uint64) error) error
	// Change writes the records if all checks hold. Otherwise it returns ErrChanged.
	Change(ctx context.Context, c Change) error
}
