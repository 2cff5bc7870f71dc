package state

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
)

// txChange is one key to write; msg nil deletes the key.
type txChange struct {
	key   string
	msg   proto.Message
	value []byte
	ttl   time.Duration
	// known is the revision at which the state knows the key. The store refuses
	// the transaction if the key has another revision, unless unchecked.
	known     int64
	unchecked bool
}

// Tx is a transaction that is being prepared: the state with changes laid over
// it. Its methods need the state's lock.
type Tx struct {
	State   *State
	changes []txChange
	size    int
	undo    []txChange // previous versions of overwritten changes
	undoAt  []int
	// expected are records that the store compares and that are not written. expectedAt
	// is where those of the present request begin.
	expected   []txChange
	expectedAt int
	// raise > 0: the transaction's revision, and all later ones, are greater than raise.
	raise int64
}

// NewTx returns an empty transaction. A dry run discards it afterwards.
func NewTx(st *State) *Tx { return &Tx{State: st} }

// mark remembers where a request's changes begin.
func (t *Tx) mark() int {
	t.undo, t.undoAt, t.expectedAt = nil, nil, len(t.expected)
	return len(t.changes)
}

func (t *Tx) rollback(mark int) {
	for i := len(t.undo) - 1; i >= 0; i-- {
		t.changes[t.undoAt[i]] = t.undo[i]
	}
	t.changes, t.expected = t.changes[:mark], t.expected[:t.expectedAt]
	t.size = 0
	for _, ch := range t.changes {
		t.size += len(ch.key) + len(ch.value) + 64
	}
}

func (t *Tx) checkSize() error {
	if len(t.changes)+len(t.expected) > commitOps || t.size > commitBytes {
		return fmt.Errorf("%w: %d writes of %d bytes", errTxFull, len(t.changes), t.size)
	}
	return nil
}

// checkConflict refuses changes while the store has to be recovered, other than those of
// the recovery. mark is where the request's changes begin.
func (t *Tx) checkConflict(mark int) error {
	if t.State.Leadership.GetConflict() == nil {
		return nil
	}
	for _, ch := range t.changes[mark:] {
		if ch.key != leadershipKey && !strings.HasPrefix(ch.key, AuditPrefix) {
			return ErrConflict
		}
	}
	return nil
}

func (t *Tx) find(key string) (txChange, bool) {
	for _, ch := range t.changes {
		if ch.key == key {
			return ch, true
		}
	}
	return txChange{}, false
}

func (t *Tx) set(ch txChange) error {
	if ch.msg != nil {
		value, err := Encode(ch.msg)
		if err != nil {
			return err
		}
		ch.value = value
	}
	t.size += len(ch.key) + len(ch.value) + 64
	for i := range t.changes {
		if t.changes[i].key == ch.key {
			ch.known = t.changes[i].known
			t.undo, t.undoAt = append(t.undo, t.changes[i]), append(t.undoAt, i)
			t.changes[i] = ch
			return nil
		}
	}
	t.changes = append(t.changes, ch)
	return nil
}

// putUnchecked writes a record without a compare: only one kind of request writes
// such records.
func (t *Tx) putUnchecked(key string, m proto.Message) error {
	return t.set(txChange{key: key, msg: m, unchecked: true})
}

// deleteUnchecked removes a record that putUnchecked wrote.
func (t *Tx) deleteUnchecked(key string) error { return t.set(txChange{key: key, unchecked: true}) }

// putNew writes a record that must not exist.
func (t *Tx) putNew(key string, m proto.Message, ttl time.Duration) error {
	return t.set(txChange{key: key, msg: m, ttl: ttl})
}
