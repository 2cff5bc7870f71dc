package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// storeFormat is what this version writes and the only one it reads.
const storeFormat = "1"

// Buckets of the store.
var (
	bucketMeta    = []byte("meta")
	bucketOrders  = []byte("orders")  // alloc → AllocOrder
	bucketForget  = []byte("forget")  // allocs the region has forgotten
	bucketRecords = []byte("records") // alloc → record
)

// Keys of bucketMeta.
var (
	keyFormat   = []byte("format")
	keyNode     = []byte("node_id")
	keyStore    = []byte("store_id")
	keyStarts   = []byte("starts")
	keyPosition = []byte("position")
	keyMaster   = []byte("master")
	keyTimeline = []byte("timeline")
)

// store is what the agent knows of after its restart: who it is, what it was
// told, and what it last knew of it.
type store struct {
	db *bolt.DB
	// node is the UUID of the node; id that of this store; starts counts how
	// often it was opened.
	node, id string
	starts   uint64
}

// record is what the agent noted about an allocation. It may be older than the
// truth, which the drivers know.
type record struct {
	Actual reconcile.Actual `json:"actual"`
	Report []byte           `json:"report"` // AllocReport
}

// masterMark orders masters: (incarnation, term).
type masterMark struct {
	Incarnation uint64 `json:"incarnation"`
	Term        uint64 `json:"term"`
}

func (m masterMark) before(o masterMark) bool {
	return m.Incarnation < o.Incarnation || m.Incarnation == o.Incarnation && m.Term < o.Term
}

// errStoreFormat: a newer version wrote the store.
var errStoreFormat = errors.New("store of another format")

func openStore(path string) (*store, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: 5 * time.Second, OpenFile: openReserved})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	s := &store{db: db}
	if err := db.Update(s.begin); err != nil {
		db.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return s, os.Chmod(path, 0o600)
}

// begin makes what is missing and counts this start.
func (s *store) begin(tx *bolt.Tx) error {
	for _, b := range [][]byte{bucketMeta, bucketOrders, bucketForget, bucketRecords} {
		if _, err := tx.CreateBucketIfNotExists(b); err != nil {
			return err
		}
	}
	meta := tx.Bucket(bucketMeta)
	if f := meta.Get(keyFormat); f != nil && string(f) != storeFormat {
		return fmt.Errorf("%w: %q, this version reads %s", errStoreFormat, f, storeFormat)
	}
	for _, kv := range []struct {
		key   []byte
		value func() string
	}{
		{keyFormat, func() string { return storeFormat }},
		{keyNode, uuid.NewString},
		{keyStore, uuid.NewString},
	} {
		if meta.Get(kv.key) == nil {
			if err := meta.Put(kv.key, []byte(kv.value())); err != nil {
				return err
			}
		}
	}
	s.node, s.id = string(meta.Get(keyNode)), string(meta.Get(keyStore))
	if err := getJSON(meta, keyStarts, &s.starts); err != nil {
		return err
	}
	s.starts++
	return putJSON(meta, keyStarts, s.starts)
}

func (s *store) close() error { return s.db.Close() }

// contents is all that a restarted agent begins with.
type contents struct {
	orders   map[string]*nusav1.AllocOrder
	forget   map[string]bool
	records  map[string]record
	position link.Position
	master   masterMark
}

func (s *store) load() (contents, error) {
	c := contents{orders: map[string]*nusav1.AllocOrder{}, forget: map[string]bool{}, records: map[string]record{}}
	err := s.db.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		if err := errors.Join(getJSON(meta, keyPosition, &c.position), getJSON(meta, keyMaster, &c.master)); err != nil {
			return err
		}
		err := tx.Bucket(bucketOrders).ForEach(func(k, v []byte) error {
			o := &nusav1.AllocOrder{}
			c.orders[string(k)] = o
			return proto.Unmarshal(v, o)
		})
		if err != nil {
			return fmt.Errorf("orders: %w", err)
		}
		err = tx.Bucket(bucketForget).ForEach(func(k, _ []byte) error {
			c.forget[string(k)] = true
			return nil
		})
		if err != nil {
			return err
		}
		return tx.Bucket(bucketRecords).ForEach(func(k, v []byte) error {
			var r record
			if err := json.Unmarshal(v, &r); err != nil {
				return fmt.Errorf("record of %s: %w", k, err)
			}
			c.records[string(k)] = r
			return nil
		})
	})
	return c, err
}

// write makes notes durable.
func (s *store) write(n notes) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		meta, orders, forget, records := tx.Bucket(bucketMeta), tx.Bucket(bucketOrders), tx.Bucket(bucketForget), tx.Bucket(bucketRecords)
		for id, o := range n.orders {
			data, err := proto.Marshal(o)
			if err != nil {
				return err
			}
			if err := errors.Join(orders.Put([]byte(id), data), forget.Delete([]byte(id))); err != nil {
				return err
			}
		}
		for id := range n.forget {
			if err := forget.Put([]byte(id), []byte{1}); err != nil {
				return err
			}
		}
		for id, r := range n.records {
			if err := putJSON(records, []byte(id), r); err != nil {
				return err
			}
		}
		for id := range n.gone {
			for _, b := range []*bolt.Bucket{orders, forget, records} {
				if err := b.Delete([]byte(id)); err != nil {
					return err
				}
			}
		}
		if n.position != nil {
			if err := putJSON(meta, keyPosition, *n.position); err != nil {
				return err
			}
		}
		if n.master != nil {
			return putJSON(meta, keyMaster, *n.master)
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

// getJSON leaves v alone when there is no such key.
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
