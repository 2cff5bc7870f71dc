package tasks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// The buckets of the file.
var (
	tasksBucket = []byte("tasks") // key → StoredTask
	idsBucket   = []byte("ids")   // id → the time in the key
	termsBucket = []byte("terms") // term, key → nothing
	endsBucket  = []byte("ends")  // time of the end, key → nothing
	metaBucket  = []byte("meta")  // see meta
	buckets     = [][]byte{tasksBucket, idsBucket, termsBucket, endsBucket, metaBucket}
)

const (
	// lockWait is how long open waits for another process to release the file.
	lockWait = 2 * time.Second
	// growBy is the step in which the file grows.
	growBy = 4 << 20
)

// errDamaged means that the file has content that this package did not write.
var errDamaged = errors.New("damaged file")

// guard runs a function that reads mapped pages. bbolt panics on invalid pages, and a page that the disk
// cannot read raises a fault. guard returns both as errDamaged, because they must not end the server.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errDamaged, r)
		}
	}()
	return f()
}

// openFile opens or creates the database at a path. noSync is for tests: a crash of the machine then
// damages the file.
func openFile(path string, noSync bool) (*bolt.DB, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	var db *bolt.DB
	err := guard(func() (err error) {
		db, err = bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait, FreelistType: bolt.FreelistMapType, NoFreelistSync: true, NoSync: noSync})
		if err != nil {
			return err
		}
		db.AllocSize = growBy
		return db.Update(func(tx *bolt.Tx) error {
			for _, b := range buckets {
				if _, err := tx.CreateBucketIfNotExists(b); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err == nil {
		return db, nil
	}
	if db != nil && !errors.Is(err, errDamaged) {
		_ = db.Close()
	}
	var number syscall.Errno
	switch {
	case errors.Is(err, errDamaged):
	case errors.Is(err, berrors.ErrTimeout):
		return nil, errors.New("another process has it open")
	case errors.As(err, &number) && number != syscall.EIO, errors.Is(err, fs.ErrPermission):
	default:
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return nil, err
}

// setAside renames a damaged file. It replaces a file that was set aside earlier.
func setAside(path string) error {
	if err := os.Rename(path, path+".damaged"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
