package quorum

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// openBolt opens or creates a file of raft-boltdb and locks the file. While another process
// has the file open, openBolt returns ErrInUse.
func openBolt(path string) (*raftboltdb.BoltStore, error) {
	db, err := raftboltdb.New(raftboltdb.Options{
		Path:        path,
		BoltOptions: &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType},
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%w: %s", ErrInUse, path)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return db, nil
}

// boltLog is the Raft log in raft-boltdb. It behaves like walLog: its entries have no gaps,
// and after a failed write it accepts no more entries.
type boltLog struct {
	*raftboltdb.BoltStore
	dir string

	write sync.Mutex // held while the log is changed
	failure
}

func openBoltLog(path string) (*boltLog, error) {
	db, err := openBolt(path)
	if err != nil {
		return nil, err
	}
	return &boltLog{BoltStore: db, dir: filepath.Dir(path), failure: newFailure()}, nil
}

// IsMonotonic returns true, which makes Raft delete all entries before it installs a
// snapshot.
func (l *boltLog) IsMonotonic() bool { return true }

// StoreLog stores one entry.
func (l *boltLog) StoreLog(g *raft.Log) error { return l.StoreLogs([]*raft.Log{g}) }

// StoreLogs returns once the entries are on disk. If there is a gap before the entries,
// they replace the log, because a snapshot holds the earlier entries.
func (l *boltLog) StoreLogs(logs []*raft.Log) error {
	l.write.Lock()
	defer l.write.Unlock()
	if l.err != nil {
		return l.err
	}
	last, err := l.LastIndex()
	if err := l.keep(err, l.dir); err != nil {
		return err
	}
	if err := checkFollows(last, logs); err != nil {
		return err
	}
	if last > 0 && len(logs) > 0 && logs[0].Index > last+1 {
		if err := l.keep(l.BoltStore.DeleteRange(0, last), l.dir); err != nil {
			return err
		}
	}
	return l.keep(l.BoltStore.StoreLogs(logs), l.dir)
}

// DeleteRange deletes entries at the start, entries at the end, or all entries.
func (l *boltLog) DeleteRange(from, to uint64) error {
	l.write.Lock()
	defer l.write.Unlock()
	if l.err != nil {
		return l.err
	}
	first, err := l.FirstIndex()
	last, err2 := l.LastIndex()
	if err := l.keep(errors.Join(err, err2), l.dir); err != nil {
		return err
	}
	if part, err := partOf(first, last, from, to); err != nil || part == deletesNothing {
		return err
	}
	return l.keep(l.BoltStore.DeleteRange(from, to), l.dir)
}

// newest returns how many of the newest entries fit into the given number of bytes. It
// reads the entries from the file, but is called only once for each snapshot.
func (l *boltLog) newest(bytes int) uint64 {
	last, err := l.LastIndex()
	if err != nil {
		return 0
	}
	var n uint64
	for g := (raft.Log{}); n < trailingEntries; n++ {
		if n >= last || l.GetLog(last-n, &g) != nil {
			break
		}
		bytes -= len(g.Data)
		if bytes < 0 {
			break
		}
	}
	return n
}

// Close closes the file and releases its lock.
func (l *boltLog) Close() error {
	l.write.Lock()
	defer l.write.Unlock()
	if l.err == nil {
		l.err = raft.ErrRaftShutdown
	}
	if err := l.BoltStore.Close(); err != nil {
		return fmt.Errorf("close the Raft log in %s: %w", l.dir, err)
	}
	return nil
}
