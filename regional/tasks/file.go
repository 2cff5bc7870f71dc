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

// file is an open database.
type file struct {
	*bolt.DB
	os *os.File
	// stuck: a write ended in a panic from which bbolt could not return, so it has its locks for ever.
	stuck bool
}

// openFile opens or creates the database at a path. noSync is for tests: a crash of the machine then
// damages the file. The list of free pages is part of the file. Without it, bbolt would read all pages in a
// goroutine of its own, where a damaged page ends the server.
func openFile(path string, noSync bool) (*file, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	out := &file{}
	options := &bolt.Options{
		Timeout: lockWait, FreelistType: bolt.FreelistMapType, NoSync: noSync,
		OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
			f, err = os.OpenFile(name, flag, mode)
			out.os = f
			return f, err
		},
	}
	err := guard(func() error {
		db, err := bolt.Open(path, 0o600, options)
		if err != nil {
			return err
		}
		out.DB = db
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
		return out, nil
	}
	out.stuck = errors.Is(err, errDamaged)
	_ = out.close()
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

// write runs f in a transaction.
func (f *file) write(do func(*bolt.Tx) error) error {
	var tx *bolt.Tx
	err := guard(func() (err error) {
		if tx, err = f.Begin(true); err == nil {
			if err = do(tx); err == nil {
				err = tx.Commit()
			}
		}
		return err
	})
	if err == nil {
		return nil
	}
	if tx == nil {
		f.stuck = errors.Is(err, errDamaged)
	} else if errors.Is(guard(tx.Rollback), errDamaged) {
		f.stuck = true
	}
	return err
}

// close closes the file. The memory mapping of a stuck database stays.
func (f *file) close() error {
	if !f.stuck && f.DB != nil {
		return guard(f.DB.Close)
	}
	if f.os != nil {
		return f.os.Close()
	}
	return nil
}

// setAside renames a damaged file. It replaces a file that was set aside earlier.
func setAside(path string) error {
	if err := os.Rename(path, path+".damaged"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
