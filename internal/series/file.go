package series

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

const (
	// growBy is the step in which the file grows. bbolt's default of 16 MiB is more than a
	// small federation ever stores.
	growBy = 1 << 20
	// lockWait is how long Open waits for another process to release the file.
	lockWait = 2 * time.Second
	// asideFor is how long a damaged file stays beside the new one.
	asideFor = 7 * 24 * time.Hour
)

// errDamaged means that the file has content that this package did not write.
var errDamaged = errors.New("damaged file")

// fault is a panic that occurred while the file was read. The stack is logged, so that
// operators can distinguish a bad disk from a bug.
type fault struct {
	what  string
	stack []byte
}

func (f fault) Error() string { return errDamaged.Error() + ": " + f.what }
func (f fault) Unwrap() error { return errDamaged }

// file is the open database.
type file struct {
	path string
	db   *bolt.DB
	os   *os.File // the file of db; closed directly when db cannot be closed any more
}

// guard runs a function that reads mapped pages. bbolt panics on invalid pages, and a page
// that the disk cannot read raises a fault. guard returns both as errDamaged, because they
// must not end the server.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fault{what: fmt.Sprint(r), stack: debug.Stack()}
		}
	}()
	return f()
}

// openFile opens or creates the database. The error is errDamaged, or the reason why no
// file can be opened at the path.
func openFile(path string, limit int64, noSync bool) (*file, error) {
	if err := checkPages(path); err != nil {
		return nil, openError(err)
	}
	f := &file{path: path}
	options := &bolt.Options{
		Timeout: lockWait, FreelistType: bolt.FreelistMapType, MaxSize: int(limit), NoSync: noSync,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			var err error
			f.os, err = os.OpenFile(name, flag, mode)
			return f.os, err
		},
	}
	err := guard(func() (err error) {
		f.db, err = bolt.Open(path, 0o600, options)
		return err
	})
	if err == nil {
		f.db.AllocSize = growBy
		return f, nil
	}
	if f.os != nil {
		f.os.Close()
	}
	return nil, openError(err)
}

// openError distinguishes a damaged file from a path at which no file can be opened.
func openError(err error) error {
	var number syscall.Errno
	switch {
	case errors.Is(err, errDamaged):
	case errors.Is(err, berrors.ErrTimeout):
		return errors.New("another process has it open")
	case errors.As(err, &number) && number != syscall.EIO, errors.Is(err, fs.ErrPermission):
	default:
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return err
}

// release closes the file even if the database is stuck. The memory mapping of a stuck
// database stays. maxSetAside bounds the number of such mappings.
func (f *file) release() { f.os.Close() }

// setAside renames the file. It replaces a file that was set aside earlier.
func setAside(path string, now time.Time) error {
	aside := path + ".damaged"
	if err := os.Rename(path, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Chtimes(aside, now, now) // asideFor counts from now
	return nil
}

// dropAside removes a damaged file after asideFor.
func dropAside(path string, now time.Time) {
	if info, err := os.Stat(path + ".damaged"); err == nil && now.Sub(info.ModTime()) > asideFor {
		_ = os.Remove(path + ".damaged")
	}
}

// check reads all keys and the heads of all segments, so that a file that was truncated or
// overwritten is found before the store uses it. It returns the last slot of each series
// and of the file.
func (f *file) check() (seen map[uint32]int64, newest int64, err error) {
	seen = map[uint32]int64{}
	err = f.view(func(tx *bolt.Tx) error {
		info, err := f.os.Stat()
		if err != nil {
			return fmt.Errorf("%w: %w", errDamaged, err)
		}
		if info.Size() < tx.Size() {
			return fmt.Errorf("%w: %d bytes of %d are there", errDamaged, info.Size(), tx.Size())
		}
		for _, name := range [][]byte{bucketMeta, bucketSeries, bucketData, bucketStale} {
			if tx.Bucket(name) == nil {
				return fmt.Errorf("%w: it lacks the bucket %s", errDamaged, name)
			}
		}
		if got := tx.Bucket(bucketMeta).Get(keyFormat); string(got) != format {
			return fmt.Errorf("%w: it has the format %q, this version knows %q", errDamaged, got, format)
		}
		return tx.Bucket(bucketData).ForEach(func(b, v []byte) error {
			k, ok := parseSegmentKey(b)
			if !ok {
				return fmt.Errorf("%w: it has the key %x", errDamaged, b)
			}
			newest = max(newest, k.end()-1)
			s, _ := openSegment(v) // a bad segment is a gap; the other segments remain usable
			for i := range s.n {
				seen[s.id(i)] = max(seen[s.id(i)], k.end()-1)
			}
			return nil
		})
	})
	return seen, newest, err
}

// begin creates the buckets of a new file. A file with content is not changed; check
// inspects it later.
func (f *file) begin() error {
	empty := true
	err := f.view(func(tx *bolt.Tx) error {
		name, _ := tx.Cursor().First()
		empty = name == nil
		return nil
	})
	if err != nil || !empty {
		return err
	}
	return f.update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{bucketMeta, bucketSeries, bucketData, bucketStale} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return tx.Bucket(bucketMeta).Put(keyFormat, []byte(format))
	})
}

// register reads the series of the file and assigns columns to the fields of the kinds.
// Series of kinds that the program no longer has can be queried until they expire.
func (f *file) register(kinds []Kind, seen map[uint32]int64) (*registry, error) {
	r := &registry{kinds: map[string]*kind{}, added: map[uint32]string{}}
	err := f.update(func(tx *bolt.Tx) error {
		meta, series := tx.Bucket(bucketMeta), tx.Bucket(bucketSeries)
		c := meta.Cursor()
		prefix := "fields/"
		for b, v := c.Seek([]byte(prefix)); strings.HasPrefix(string(b), prefix); b, v = c.Next() {
			r.know(string(b[len(prefix):]), strings.Split(string(v), "\x00"))
		}
		for _, want := range kinds {
			k := r.know(want.Name, nil)
			if !k.use(want.Fields) {
				return fmt.Errorf("%w: the kind %s has had more than %d fields", errDamaged, want.Name, maxBlockFields)
			}
			if err := meta.Put([]byte(prefix+want.Name), []byte(strings.Join(k.stored, "\x00"))); err != nil {
				return err
			}
		}
		r.nextID = uint32(series.Sequence())
		return series.ForEach(func(b, v []byte) error {
			name, key, ok := strings.Cut(string(v), "\x00")
			if len(b) != 4 || !ok || r.kinds[name] == nil {
				return fmt.Errorf("%w: it has the series %q", errDamaged, v)
			}
			id := binary.BigEndian.Uint32(b)
			r.nextID = max(r.nextID, id+1)
			r.kinds[name].series[key] = &entry{id: id, seen: seen[id]}
			r.count++
			return nil
		})
	})
	return r, err
}

// know returns the kind that has the given name. A new kind is added with the stored
// fields.
func (r *registry) know(name string, stored []string) *kind {
	k := r.kinds[name]
	if k == nil {
		k = &kind{name: name, stored: stored, series: map[string]*entry{}}
		k.use(stored)
		r.kinds[name] = k
	}
	return k
}

// use maps fields to columns and adds columns for new names. It returns false if there are
// too many columns.
func (k *kind) use(fields []string) bool {
	k.fields, k.columns = fields, nil
	for _, name := range fields {
		column := -1
		for i, s := range k.stored {
			if s == name {
				column = i
			}
		}
		if column < 0 {
			column = len(k.stored)
			k.stored = append(k.stored, name)
		}
		k.columns = append(k.columns, column)
	}
	return len(k.stored) <= maxBlockFields
}

func checkKinds(kinds []Kind) error {
	names := map[string]bool{}
	for _, k := range kinds {
		if k.Name == "" || names[k.Name] || strings.ContainsAny(k.Name, "\x00") || len(k.Name) > maxFieldName {
			return fmt.Errorf("kind %q: names must be unique, 1 to %d bytes", k.Name, maxFieldName)
		}
		names[k.Name] = true
		if len(k.Fields) == 0 || len(k.Fields) > maxBlockFields {
			return fmt.Errorf("kind %s has %d fields: 1 to %d", k.Name, len(k.Fields), maxBlockFields)
		}
		fields := map[string]bool{}
		for _, f := range k.Fields {
			if f == "" || fields[f] || strings.ContainsAny(f, "\x00") || len(f) > maxFieldName {
				return fmt.Errorf("kind %s, field %q: names must be unique, 1 to %d bytes", k.Name, f, maxFieldName)
			}
			fields[f] = true
		}
	}
	return nil
}

// openChecked opens the file and reads its series. It sets a damaged file aside and
// begins a new one.
func openChecked(path string, kinds []Kind, l Limits, noSync bool, now time.Time, damaged func(error)) (*file, *registry, int64, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, 0, err
	}
	for attempt := 0; ; attempt++ {
		f, r, newest, err := openOnce(path, kinds, l, noSync)
		if err == nil || attempt > 0 || !errors.Is(err, errDamaged) {
			return f, r, newest, err
		}
		damaged(err)
		if err := setAside(path, now); err != nil {
			return nil, nil, 0, err
		}
	}
}

func openOnce(path string, kinds []Kind, l Limits, noSync bool) (*file, *registry, int64, error) {
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Size() > l.Bytes {
		if err := shrink(path, l.Bytes); err != nil {
			return nil, nil, 0, err
		}
	}
	f, err := openFile(path, l.Bytes, noSync)
	if err != nil {
		return nil, nil, 0, err
	}
	r, newest, err := f.load(kinds)
	if err != nil {
		f.release()
		return nil, nil, 0, err
	}
	return f, r, newest, nil
}

// load checks the file, and creates the buckets if the file is empty. It returns the
// series of the file and its last slot.
func (f *file) load(kinds []Kind) (*registry, int64, error) {
	if err := f.begin(); err != nil {
		return nil, 0, err
	}
	seen, newest, err := f.check()
	if err != nil {
		return nil, 0, err
	}
	r, err := f.register(kinds, seen)
	return r, newest, err
}

// shrink replaces a file that exceeds a lowered bound by a copy without the oldest data of
// the coarsest level.
func shrink(path string, limit int64) error {
	old, err := openFile(path, 0, true)
	if err != nil {
		return err
	}
	defer func() { _ = guard(old.db.Close) }()
	if _, _, err := old.check(); err != nil {
		return err
	}
	err = old.update(func(tx *bolt.Tx) error {
		_, err := newPages(tx).evict(usedBytes(tx) - limit*evictTo/100)
		return err
	})
	if err != nil {
		return err
	}
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fresh, err := openFile(path+".new", limit, true)
	if err != nil {
		return err
	}
	err = guard(func() error {
		if err := bolt.Compact(fresh.db, old.db, growBy); err != nil {
			return err
		}
		return errors.Join(fresh.db.Sync(), fresh.db.Close())
	})
	if err != nil {
		fresh.release()
		return err
	}
	return os.Rename(path+".new", path)
}

// usedBytes returns the bytes of the file in pages that are not free.
func usedBytes(tx *bolt.Tx) int64 {
	s := tx.DB().Stats()
	return tx.Size() - int64(s.FreePageN+s.PendingPageN)*int64(tx.DB().Info().PageSize)
}
