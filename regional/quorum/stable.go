package quorum

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/raft"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// Buckets of the file.
var (
	logBucket  = []byte("logs") // entries by index: of earlier versions
	termBucket = []byte("conf") // term and vote
)

// boltStore keeps term and vote in a file of bbolt, and reads entries of the log
// that earlier versions kept there, in the form of the library raft-boltdb.
type boltStore struct{ db *bolt.DB }

// openBolt locks the file, which other processes then cannot open.
func openBolt(path string) (*boltStore, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%w: %s", ErrInUse, path)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(logBucket)
		_, also := tx.CreateBucketIfNotExists(termBucket)
		return errors.Join(err, also)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	return &boltStore{db}, nil
}

func (b *boltStore) Close() error { return b.db.Close() }

// LastIndex is 0 if there are no entries.
func (b *boltStore) LastIndex() (index uint64, err error) {
	err = b.db.View(func(tx *bolt.Tx) error {
		if k, _ := tx.Bucket(logBucket).Cursor().Last(); k != nil {
			index = binary.BigEndian.Uint64(k)
		}
		return nil
	})
	return index, err
}

// GetLog reads an entry, as a raft.LogStore does.
func (b *boltStore) GetLog(index uint64, l *raft.Log) error {
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

// Set implements raft.StableStore.
func (b *boltStore) Set(k, value []byte) error {
	return b.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(termBucket).Put(k, value) })
}

// Get implements raft.StableStore, whose user knows the error by its text.
func (b *boltStore) Get(k []byte) (value []byte, err error) {
	err = b.db.View(func(tx *bolt.Tx) error {
		if value = bytes.Clone(tx.Bucket(termBucket).Get(k)); value == nil {
			return errors.New("not found")
		}
		return nil
	})
	return value, err
}

// SetUint64 implements raft.StableStore.
func (b *boltStore) SetUint64(k []byte, value uint64) error { return b.Set(k, key(value)) }

// GetUint64 implements raft.StableStore.
func (b *boltStore) GetUint64(k []byte) (uint64, error) {
	v, err := b.Get(k)
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(v), nil
}

func key(index uint64) []byte { return binary.BigEndian.AppendUint64(nil, index) }
