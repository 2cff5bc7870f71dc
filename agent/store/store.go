package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// format is the format of the store that this version writes. It reads no other format.
const format = "1"

// The buckets of the store.
var (
	bucketMeta    = []byte("meta")
	bucketOrders  = []byte("orders")  // alloc → AllocOrder
	bucketForget  = []byte("forget")  // allocs that the region has forgotten
	bucketRecords = []byte("records") // alloc → Record, as JSON
)

// The keys of bucketMeta.
var (
	keyFormat   = []byte("format")
	keyNode     = []byte("node_id")
	keyStore    = []byte("store_id")
	keyStarts   = []byte("starts")
	keyPosition = []byte("position")
	keyMaster   = []byte("master")
	keyTimeline = []byte("timeline")
)

// Store is the file of the local store.
type Store struct {
	db *bolt.DB
	// NodeID is the UUID of the node, and ID is the UUID of this store. Starts counts how
	// often the store was opened.
	NodeID, ID string
	Starts     uint64
}

// MasterTerm identifies the leadership of a master. Masters are ordered by
// (incarnation, term).
type MasterTerm struct {
	Incarnation uint64 `json:"incarnation"`
	Term        uint64 `json:"term"`
}

// Before reports whether m is older than o.
func (m MasterTerm) Before(o MasterTerm) bool {
	return m.Incarnation < o.Incarnation || m.Incarnation == o.Incarnation && m.Term < o.Term
}

// errFormat: another version wrote the store, in a format that this version does not read.
var errFormat = errors.New("local store of another format")

// Open opens the store at a path and counts the start. If there is no store, Open creates
// one.
func Open(path string) (*Store, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: 5 * time.Second, OpenFile: openReserved})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	s := &Store{db: db}
	if err := db.Update(s.begin); err != nil {
		db.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return s, os.Chmod(path, 0o600)
}

// begin creates the missing buckets and keys and counts this start.
func (s *Store) begin(tx *bolt.Tx) error {
	for _, b := range [][]byte{bucketMeta, bucketOrders, bucketForget, bucketRecords} {
		if _, err := tx.CreateBucketIfNotExists(b); err != nil {
			return err
		}
	}
	meta := tx.Bucket(bucketMeta)
	if f := meta.Get(keyFormat); f != nil && string(f) != format {
		return fmt.Errorf("%w: it is %q, this version reads %q; use the version of nusa that wrote it", errFormat, f, format)
	}
	for _, kv := range []struct {
		key   []byte
		value func() string
	}{
		{keyFormat, func() string { return format }},
		{keyNode, uuid.NewString},
		{keyStore, uuid.NewString},
	} {
		if meta.Get(kv.key) == nil {
			if err := meta.Put(kv.key, []byte(kv.value())); err != nil {
				return err
			}
		}
	}
	s.NodeID, s.ID = string(meta.Get(keyNode)), string(meta.Get(keyStore))
	if err := getJSON(meta, keyStarts, &s.Starts); err != nil {
		return err
	}
	s.Starts++
	return putJSON(meta, keyStarts, s.Starts)
}

// Close closes the store's file.
func (s *Store) Close() error { return s.db.Close() }

// Contents holds everything that a restarted agent begins with.
type Contents struct {
	Orders    map[string]*nusav1.AllocOrder
	Forgotten map[string]bool
	Records   map[string]Record
	Position  link.Position
	Master    MasterTerm
}

// Load reads the contents of the store.
func (s *Store) Load() (Contents, error) {
	c := Contents{Orders: map[string]*nusav1.AllocOrder{}, Forgotten: map[string]bool{}, Records: map[string]Record{}}
	err := s.db.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		if err := errors.Join(getJSON(meta, keyPosition, &c.Position), getJSON(meta, keyMaster, &c.Master)); err != nil {
			return err
		}
		err := tx.Bucket(bucketOrders).ForEach(func(k, v []byte) error {
			o := &nusav1.AllocOrder{}
			c.Orders[string(k)] = o
			return proto.Unmarshal(v, o)
		})
		if err != nil {
			return fmt.Errorf("orders: %w", err)
		}
		err = tx.Bucket(bucketForget).ForEach(func(k, _ []byte) error {
			c.Forgotten[string(k)] = true
			return nil
		})
		if err != nil {
			return err
		}
		return tx.Bucket(bucketRecords).ForEach(func(k, v []byte) error {
			var r Record
			if err := json.Unmarshal(v, &r); err != nil {
				return fmt.Errorf("record of %s: %w", k, err)
			}
			c.Records[string(k)] = r
			return nil
		})
	})
	return c, err
}

// Write makes a batch durable, as a whole or not at all. A running agent writes only
// through its Writer.
func (s *Store) Write(b Batch) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		meta, orders, forget, records := tx.Bucket(bucketMeta), tx.Bucket(bucketOrders), tx.Bucket(bucketForget), tx.Bucket(bucketRecords)
		for id, o := range b.Orders {
			data, err := proto.Marshal(o)
			if err != nil {
				return err
			}
			if err := errors.Join(orders.Put([]byte(id), data), forget.Delete([]byte(id))); err != nil {
				return err
			}
		}
		for id := range b.Forgotten {
			if err := forget.Put([]byte(id), []byte{1}); err != nil {
				return err
			}
		}
		for id, r := range b.Records {
			if err := putJSON(records, []byte(id), r); err != nil {
				return err
			}
		}
		for id := range b.Removed {
			for _, bucket := range []*bolt.Bucket{orders, forget, records} {
				if err := bucket.Delete([]byte(id)); err != nil {
					return err
				}
			}
		}
		if b.Position != nil {
			if err := putJSON(meta, keyPosition, *b.Position); err != nil {
				return err
			}
		}
		if b.Master != nil {
			return putJSON(meta, keyMaster, *b.Master)
		}
		return nil
	})
}

func putJSON(b *bolt.Bucket, key []byte, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.Put(key, data)
}

// getJSON decodes the value of a key into v. If the key is missing, v does not change.
func getJSON(b *bolt.Bucket, key []byte, v any) error {
	data := b.Get(key)
	if data == nil {
		return nil
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}
