package reserve

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// bucket has a JSON record for each run, under "alloc/task/run". The format is its name's end.
var bucket = []byte("runs-1")

// disk is the file with the records. Changes that are made at the same time share a transaction.
type disk struct{ db *bolt.DB }

func openDisk(dir string) (*disk, map[driver.ID]*record, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	path := filepath.Join(dir, "runs.db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: 5 * time.Second})
	if err != nil {
		return nil, nil, fmt.Errorf("open %s: %w", path, err)
	}
	db.MaxBatchDelay = time.Millisecond
	out := map[driver.ID]*record{}
	err = db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(bucket)
		if err != nil {
			return err
		}
		return b.ForEach(func(k, v []byte) error {
			id, ok := idOf(string(k))
			r := &record{}
			if err := json.Unmarshal(v, r); err != nil || !ok {
				return errors.Join(fmt.Errorf("%s: record %q is damaged", path, k), err)
			}
			out[id] = r
			return nil
		})
	})
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return &disk{db: db}, out, nil
}

func idOf(key string) (driver.ID, bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 3 {
		return driver.ID{}, false
	}
	n, err := strconv.Atoi(parts[2])
	return driver.ID{Alloc: parts[0], Task: parts[1], Run: n}, err == nil && n > 0
}

// put stores a record durably.
func (d *disk) put(id driver.ID, r record) error {
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return d.db.Batch(func(tx *bolt.Tx) error { return tx.Bucket(bucket).Put([]byte(id.String()), value) })
}

// remove removes a record durably.
func (d *disk) remove(id driver.ID) error {
	return d.db.Batch(func(tx *bolt.Tx) error { return tx.Bucket(bucket).Delete([]byte(id.String())) })
}
