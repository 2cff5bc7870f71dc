package quorum

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// ErrInUse says that another process has the data directory open.
var ErrInUse = errors.New("data directory is in use by another process")

// LogKind names the library that stores the entries of the Raft log.
type LogKind string

const (
	// WAL is etcd's write-ahead log. It makes one fsync for each batch and has a checksum
	// for each entry. It is the default.
	WAL LogKind = "wal"
	// BoltDB is raft-boltdb: a B+ tree in one file. It makes two fsyncs for each batch and
	// has no checksums of entries.
	BoltDB LogKind = "boltdb"
)

// Check returns an error if the kind is neither WAL nor BoltDB.
func (k LogKind) Check() error {
	if k != WAL && k != BoltDB {
		return fmt.Errorf("%q is no Raft log: choose %s or %s", string(k), WAL, BoltDB)
	}
	return nil
}

func (k LogKind) other() LogKind {
	if k == WAL {
		return BoltDB
	}
	return WAL
}

// snapshotsRetained is how many snapshots stay on disk.
const snapshotsRetained = 2

// cachedEntries is how many entries of a BoltDB log are cached in memory, for followers
// that lag little.
const cachedEntries = 512

// stores hold the data that Raft must not lose.
type stores struct {
	log       raft.LogStore // disk, or a cache in front of disk
	stable    raft.StableStore
	snapshots raft.SnapshotStore
	disk      logStore // nil in memory
	// converted is the kind of log that the directory had before it was converted. It is
	// empty if no conversion was needed.
	converted LogKind
	close     func() error
}

// logStore is a Raft log on disk.
type logStore interface {
	raft.LogStore
	raft.MonotonicLogStore
	// newest returns how many of the newest entries fit into the given number of bytes.
	newest(bytes int) uint64
	// brokenCh returns a channel that receives the error after which the log accepts no
	// more entries.
	brokenCh() <-chan error
	Close() error
}

// openStores opens the log, the store of term and vote, and the folder of snapshots. The
// log is synced at every write. A log of the other kind is converted first.
func openStores(dir string, kind LogKind, logger hclog.Logger) (_ stores, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return stores{}, fmt.Errorf("create the Raft directory: %w", err)
	}
	l := layout{dir, logger}
	have, err := l.marked()
	if err == nil && have == "" {
		_, err = l.migrate(kind)
	}
	if err != nil {
		return stores{}, fmt.Errorf("prepare the Raft directory %s: %w", dir, err)
	}
	// A server that has lost its vote could vote twice in one term.
	if _, err := os.Stat(l.stable()); err != nil {
		return stores{}, fmt.Errorf("the Raft directory %s has lost its term and vote: %w (start this server with an empty data directory if its region has others, else restore that file from a backup)", dir, err)
	}
	stable, err := openBolt(l.stable())
	if err != nil {
		return stores{}, err
	}
	out := stores{stable: stable}
	have, err = l.marked() // read again under the lock on stable.db
	if err == nil && have != kind {
		err, out.converted = l.convert(have, kind), have
	}
	if err != nil {
		return stores{}, errors.Join(fmt.Errorf("convert the Raft log in %s from %s to %s: %w (--raft-log %s keeps it as it is)", dir, have, kind, err, have), stable.Close())
	}
	log, err := l.open(kind)
	if err != nil {
		return stores{}, errors.Join(err, stable.Close())
	}
	out.log, out.disk = log, log
	if kind == BoltDB { // a walLog has all its entries in memory already
		out.log, err = raft.NewLogCache(cachedEntries, log)
		if err != nil {
			return stores{}, errors.Join(err, log.Close(), stable.Close())
		}
	}
	out.close = func() error { return errors.Join(log.Close(), stable.Close()) }
	if err := l.remove(kind.other()); err != nil { // left by an interrupted conversion
		return stores{}, errors.Join(fmt.Errorf("remove the former Raft log: %w", err), out.close())
	}
	// Raft does not remove a snapshot that it could not finish.
	for _, name := range glob(filepath.Join(dir, "snapshots"), "*.tmp") {
		if err := os.RemoveAll(name); err != nil {
			return stores{}, errors.Join(fmt.Errorf("remove an unfinished snapshot: %w", err), out.close())
		}
	}
	out.snapshots, err = raft.NewFileSnapshotStoreWithLogger(dir, snapshotsRetained, logger)
	if err != nil {
		return stores{}, errors.Join(fmt.Errorf("open the snapshots in %s: %w", dir, err), out.close())
	}
	return out, nil
}

// memoryStores returns stores that lose everything when the process ends. They are for
// simulations only.
func memoryStores() stores {
	s := raft.NewInmemStore()
	return stores{log: s, stable: s, snapshots: raft.NewInmemSnapshotStore(), close: func() error { return nil }}
}
