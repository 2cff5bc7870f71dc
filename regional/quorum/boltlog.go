package quorum

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/raft"
	bolt "go.etcd.io/bbolt"
)

// Buckets of raft.db.
var (
	logBucket  = []byte("logs") // entries by index
	termBucket = []byte("conf") // term and vote
)

// keptBuffer bounds the memory that stays from one write to the next.
const keptBuffer = 1 << 20

// boltLog keeps what Raft must not forget in a file of bbolt: the same bytes as
// the library raft-boltdb, which earlier versions used, without what it copies
// and allocates for each entry.
type boltLog struct {
	db  *bolt.DB
	buf []byte // of the one transaction that writes
}

func newBoltLog(db *bolt.DB) (*boltLog, error) {
	return &boltLog{db: db}, db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(logBucket)
		_, also := tx.CreateBucketIfNotExists(termBucket)
		return errors.Join(err, also)
	})
}

// FirstIndex implements raft.LogStore; 0 if there are no entries.
func (b *boltLog) FirstIndex() (uint64, error) { return b.index((*bolt.Cursor).First) }

// LastIndex implements raft.LogStore; 0 if there are no entries.
func (b *boltLog) LastIndex() (uint64, error) { return b.index((*bolt.Cursor).Last) }

func (b *boltLog) index(which func(*bolt.Cursor) (key, value []byte)) (index uint64, err error) {
	err = b.db.View(func(tx *bolt.Tx) error {
		if k, _ := which(tx.Bucket(logBucket).Cursor()); k != nil {
			index = binary.BigEndian.Uint64(k)
		}
		return nil
	})
	return index, err
}

// GetLog implements raft.LogStore.
func (b *boltLog) GetLog(index uint64, l *raft.Log) error {
	return b.db.View(func(tx *bolt.Tx) error {
		v := tx.Bucket(logBucket).Get(key(index))
		if v == nil {
			return raft.ErrLogNotFound
		}
		*l = raft.Log{}
		if err := codec.NewDecoderBytes(v, &codec.MsgpackHandle{}).Decode(l); err != nil {
			return fmt.Errorf("read entry %d of the Raft log: %w", index, err)
		}
		l.Data, l.Extensions = bytes.Clone(l.Data), bytes.Clone(l.Extensions) // v is the file's
		return nil
	})
}

// StoreLog implements raft.LogStore.
func (b *boltLog) StoreLog(l *raft.Log) error { return b.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (b *boltLog) StoreLogs(logs []*raft.Log) error {
	return b.db.Update(func(tx *bolt.Tx) error {
		const head = 128 // more than all besides the data
		size := 0
		for _, l := range logs {
			size += head + len(l.Data) + len(l.Extensions)
		}
		// Of one piece until the transaction has ended, which copies the values.
		buf := slices.Grow(b.buf[:0], size)
		if cap(buf) <= keptBuffer {
			b.buf = buf
		}
		bucket := tx.Bucket(logBucket)
		for _, l := range logs {
			at := len(buf)
			var err error
			if buf, err = appendEntry(buf, l); err != nil {
				return err
			}
			if err := bucket.Put(key(l.Index), buf[at:]); err != nil {
				return err
			}
		}
		return nil
	})
}

// appendEntry writes an entry in msgpack, as a map with the names of its fields.
func appendEntry(b []byte, l *raft.Log) ([]byte, error) {
	at, err := l.AppendedAt.MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("entry %d of the Raft log: %w", l.Index, err)
	}
	b = appendRaw(appendName(append(b, 0x86), "AppendedAt"), at)
	b = appendRaw(appendName(b, "Data"), l.Data)
	b = appendRaw(appendName(b, "Extensions"), l.Extensions)
	b = appendUint(appendName(b, "Index"), l.Index)
	b = appendUint(appendName(b, "Term"), l.Term)
	return appendUint(appendName(b, "Type"), uint64(l.Type)), nil
}

func appendName(b []byte, name string) []byte {
	return append(append(b, 0xa0|byte(len(name))), name...)
}

func appendUint(b []byte, n uint64) []byte {
	switch {
	case n < 0x80:
		return append(b, byte(n))
	case n < 1<<8:
		return append(b, 0xcc, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), n)
}

func appendRaw(b, data []byte) []byte {
	switch n := len(data); {
	case data == nil:
		return append(b, 0xc0)
	case n < 0x20:
		b = append(b, 0xa0|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(n))
	}
	return append(b, data...)
}

// DeleteRange implements raft.LogStore.
func (b *boltLog) DeleteRange(from, to uint64) error {
	return b.db.Update(func(tx *bolt.Tx) error {
		c := tx.Bucket(logBucket).Cursor()
		for k, _ := c.Seek(key(from)); k != nil && binary.BigEndian.Uint64(k) <= to; k, _ = c.Next() {
			if err := c.Delete(); err != nil {
				return err
			}
		}
		return nil
	})
}

// Set implements raft.StableStore.
func (b *boltLog) Set(k, value []byte) error {
	return b.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(termBucket).Put(k, value) })
}

// Get implements raft.StableStore, whose user knows the error by its text.
func (b *boltLog) Get(k []byte) (value []byte, err error) {
	err = b.db.View(func(tx *bolt.Tx) error {
		if value = bytes.Clone(tx.Bucket(termBucket).Get(k)); value == nil {
			return errors.New("not found")
		}
		return nil
	})
	return value, err
}

// SetUint64 implements raft.StableStore.
func (b *boltLog) SetUint64(k []byte, value uint64) error { return b.Set(k, key(value)) }

// GetUint64 implements raft.StableStore.
func (b *boltLog) GetUint64(k []byte) (uint64, error) {
	v, err := b.Get(k)
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(v), nil
}

func key(index uint64) []byte { return binary.BigEndian.AppendUint64(nil, index) }
