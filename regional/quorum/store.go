package quorum

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
)

// ErrOldLog says that the directory holds a log of an earlier form.
var ErrOldLog = errors.New("the Raft log is of an earlier form of Nusa")

// snapshotsKept is how many snapshots stay on disk.
const snapshotsKept = 2

// logCache is how many recent log entries stay in memory for followers.
const logCache = 128

// stores are where Raft keeps what it must not forget.
type stores struct {
	log       raft.LogStore
	stable    raft.StableStore
	snapshots raft.SnapshotStore
	close     func() error
}

// segmentSize is by how much the log grows at a time; segments that a snapshot
// covers are deleted whole.
const segmentSize = 16 << 20

// openStores opens a write-ahead log in segments, one sync a write where a
// B-tree needs two, and a folder of snapshots. The only place that knows the
// library that stores the log. The directory is this process's: who owns the
// data directory sees to that.
func openStores(dir string, logger hclog.Logger) (stores, error) {
	path := filepath.Join(dir, "log")
	if err := os.MkdirAll(path, 0o700); err != nil {
		return stores{}, fmt.Errorf("create the Raft directory: %w", err)
	}
	old := filepath.Join(dir, "raft.db")
	if _, err := os.Stat(old); err == nil {
		return stores{}, fmt.Errorf("%w: %s: finish with the build that wrote it, or start with an empty data directory", ErrOldLog, old)
	}
	meta := &metadb.BoltMetaDB{} // ours, because the log does not close it
	log, err := wal.Open(path, wal.WithSegmentSize(segmentSize), wal.WithLogger(logger), wal.WithMetaStore(meta))
	if err != nil {
		return stores{}, errors.Join(fmt.Errorf("open the Raft log in %s: %w", path, err), meta.Close())
	}
	closeLog := func() error { return errors.Join(log.Close(), meta.Close()) }
	cache, err := raft.NewLogCache(logCache, log)
	if err != nil {
		return stores{}, errors.Join(fmt.Errorf("cache of the Raft log: %w", err), closeLog())
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, logger)
	if err != nil {
		return stores{}, errors.Join(fmt.Errorf("open the snapshots in %s: %w", dir, err), closeLog())
	}
	return stores{log: cache, stable: log, snapshots: snaps, close: closeLog}, nil
}

// memoryStores forget everything: for simulations only.
func memoryStores() stores {
	s := raft.NewInmemStore()
	return stores{log: s, stable: s, snapshots: raft.NewInmemSnapshotStore(), close: func() error { return nil }}
}
