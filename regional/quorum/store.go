package quorum

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// ErrInUse says that another process holds the data directory.
var ErrInUse = errors.New("data directory is in use by another process")

// snapshotsKept is how many snapshots stay on disk.
const snapshotsKept = 2

// stores are where Raft keeps what it must not forget.
type stores struct {
	log       raft.LogStore
	stable    raft.StableStore
	snapshots raft.SnapshotStore
	// newest is how many of the log's newest entries hold so many bytes.
	newest func(bytes int) uint64
	// broken receives why the log takes no more, if it fails.
	broken <-chan error
	close  func() error
}

// openStores opens the log, which is synced at every write, the term and the
// vote, and a folder of snapshots.
func openStores(dir string, logger hclog.Logger) (_ stores, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return stores{}, fmt.Errorf("create the Raft directory: %w", err)
	}
	p := paths(dir)
	noted, err := p.noted()
	if err == nil && !noted {
		err = p.move(logger)
	}
	if err != nil {
		return stores{}, fmt.Errorf("prepare the Raft directory %s: %w", dir, err)
	}
	if _, err := os.Stat(p.stable()); err != nil { // who forgets its vote may vote twice
		return stores{}, fmt.Errorf("the Raft directory %s has lost its term and vote: %w (start this server with an empty data directory where its region has others, else restore that from a backup)", dir, err)
	}
	db, err := openBolt(p.stable())
	if err != nil {
		return stores{}, err
	}
	log, err := openWAL(p.log(), logger)
	if err != nil {
		return stores{}, errors.Join(err, db.Close())
	}
	end := func() error { return errors.Join(log.Close(), db.Close()) }
	// The library leaves a snapshot that it could not write where it is.
	for _, name := range glob(filepath.Join(dir, "snapshots"), "*.tmp") {
		if err := os.RemoveAll(name); err != nil {
			return stores{}, errors.Join(fmt.Errorf("remove a half snapshot: %w", err), end())
		}
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, logger)
	if err != nil {
		return stores{}, errors.Join(fmt.Errorf("open the snapshots in %s: %w", dir, err), end())
	}
	return stores{log: log, stable: db, snapshots: snaps, newest: log.newest, broken: log.broken, close: end}, nil
}

// paths is a Raft directory. Versions up to 2026-11 kept log, term and vote in
// raft.db. Now the log is a folder of its own, stable.db holds the rest, and
// raft.db is a note that says so: those versions fail on it, where they would
// begin a new log if there were nothing.
type paths string

func (p paths) log() string    { return filepath.Join(string(p), "log") }
func (p paths) stable() string { return filepath.Join(string(p), "stable.db") }
func (p paths) old() string    { return filepath.Join(string(p), "raft.db") }

const note = "Raft's log is in the folder log, its term and vote are in stable.db. A version of nusa that looks for them here is too old for this directory.\n"

// noted says whether the directory has the form of today.
func (p paths) noted() (bool, error) {
	f, err := os.Open(p.old())
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	begin, err := io.ReadAll(io.LimitReader(f, int64(len(note))))
	return bytes.Equal(begin, []byte(note)), err
}

// move gives a directory the form of today: a new one, or one of an earlier
// version with all that is in it. The note comes last; until it is there, raft.db
// is what counts, and move begins anew.
func (p paths) move(logger hclog.Logger) (err error) {
	from := p.old()
	_, err = os.Stat(from)
	fresh := errors.Is(err, os.ErrNotExist)
	if fresh {
		from = p.stable()
	}
	db, err := openBolt(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if done, err := p.noted(); done || err != nil { // by who held the lock before
		return err
	}
	if !fresh {
		if err := errors.Join(os.RemoveAll(p.log()), os.RemoveAll(p.stable()), os.Link(p.old(), p.stable())); err != nil {
			return err
		}
	}
	if !wal.Exist(p.log()) {
		log, err := createWAL(p.log(), logger)
		if err != nil {
			return err
		}
		if err := errors.Join(copyLog(log, db), log.Close()); err != nil {
			return err
		}
	}
	return p.putNote()
}

// copyLog copies the entries behind the last gap: what a snapshot that came from
// the leader holds, and what was left of the log before it, Raft needs no more.
func copyLog(to *walLog, from *boltStore) error {
	last, err := from.LastIndex()
	if err != nil || last == 0 {
		return err
	}
	g := &raft.Log{}
	first := last
	for first > 1 && from.GetLog(first-1, g) == nil {
		first--
	}
	for next := first; next <= last; {
		var some []*raft.Log
		for size := 0; next <= last && size < scratchKept; next++ {
			g = &raft.Log{}
			if err := from.GetLog(next, g); err != nil {
				return fmt.Errorf("copy entry %d of the log: %w", next, err)
			}
			some = append(some, g)
			size += len(g.Data)
		}
		if err := to.StoreLogs(some); err != nil {
			return err
		}
	}
	return nil
}

// putNote replaces raft.db by the note, for good.
func (p paths) putNote() error {
	if err := syncDir(string(p)); err != nil { // what the note says is there
		return err
	}
	tmp := p.old() + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(note)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, p.old()); err != nil {
		return err
	}
	return syncDir(string(p))
}

// memoryStores forget everything: for simulations only.
func memoryStores() stores {
	s := raft.NewInmemStore()
	return stores{log: s, stable: s, snapshots: raft.NewInmemSnapshotStore(), close: func() error { return nil }}
}
