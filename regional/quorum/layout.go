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

// layout is a Raft directory:
//
//	stable.db  term and vote (raft-boltdb)
//	log/       the log of kind WAL
//	log.db     the log of kind BoltDB (raft-boltdb)
//	raft.db    a text that says which of the two holds the log
//	snapshots/
//
// Versions up to October 2026 had the log, the term and the vote in raft.db itself, a file
// of raft-boltdb. Such a version fails when it reads the text. If raft.db were missing, it
// would begin a new log. The version that knew only the WAL fails on the text for BoltDB.
type layout struct {
	dir    string
	logger hclog.Logger
}

func (l layout) stable() string  { return filepath.Join(l.dir, "stable.db") }
func (l layout) walDir() string  { return filepath.Join(l.dir, "log") }
func (l layout) boltLog() string { return filepath.Join(l.dir, "log.db") }
func (l layout) marker() string  { return filepath.Join(l.dir, "raft.db") }

// markers are the texts of raft.db. Their bytes are part of the stored format.
var markers = map[LogKind]string{
	WAL:    "Raft's log is in the folder log, its term and vote are in stable.db. A version of nusa that looks for them here is too old for this directory.\n",
	BoltDB: "Raft's log is in log.db, its term and vote are in stable.db. A version of nusa that looks for them here is too old for this directory.\n",
}

// marked returns the kind of log that the text in raft.db names. It is empty if raft.db is
// missing or is a file of an earlier version.
func (l layout) marked() (LogKind, error) {
	f, err := os.Open(l.marker())
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 256)) // longer than any marker
	if err != nil {
		return "", err
	}
	for kind, marker := range markers {
		if bytes.HasPrefix(text, []byte(marker)) {
			return kind, nil
		}
	}
	return "", nil
}

// migrate gives a directory the present layout and returns its kind of log. An empty
// directory gets the requested kind. A directory of an earlier version gets the requested
// kind too, and all its entries are copied. The marker is written last. Until then raft.db
// holds the log, and an interrupted migration starts again.
func (l layout) migrate(kind LogKind) (_ LogKind, err error) {
	from := l.marker()
	_, err = os.Stat(from)
	old := !errors.Is(err, os.ErrNotExist)
	if !old {
		from = l.stable()
	}
	db, err := openBolt(from)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	// Another process may have migrated the directory before it released the lock.
	if have, err := l.marked(); have != "" || err != nil {
		return have, err
	}
	switch {
	case old:
		err = errors.Join(l.remove(WAL), l.remove(BoltDB), os.RemoveAll(l.stable()), os.Link(l.marker(), l.stable()))
		if err == nil {
			err = l.create(kind, db)
		}
	case l.exists(WAL): // only the marker is missing
		kind = WAL
	case l.exists(BoltDB):
		kind = BoltDB
	default:
		err = l.create(kind, db)
	}
	if err != nil {
		return "", err
	}
	return kind, l.mark(kind)
}

// convert copies the log into the other kind of store and changes the marker. The caller
// holds the lock on stable.db. If convert is interrupted, the marker still names the store
// that is valid.
func (l layout) convert(from, to LogKind) error {
	old, err := l.open(from)
	if err != nil {
		return err
	}
	err = l.remove(to) // remains of an interrupted conversion
	if err == nil {
		err = l.create(to, old)
	}
	if err := errors.Join(err, old.Close()); err != nil {
		return err
	}
	return l.mark(to)
}

func (l layout) exists(kind LogKind) bool {
	if kind == WAL {
		return wal.Exist(l.walDir())
	}
	_, err := os.Stat(l.boltLog())
	return err == nil
}

func (l layout) remove(kind LogKind) error {
	if kind == WAL {
		return os.RemoveAll(l.walDir())
	}
	return os.RemoveAll(l.boltLog())
}

// open opens an existing log. A missing log is an error, because a server that has lost its
// log must not take part.
func (l layout) open(kind LogKind) (logStore, error) {
	if kind == WAL {
		return openWAL(l.walDir(), l.logger)
	}
	if _, err := os.Stat(l.boltLog()); err != nil {
		return nil, fmt.Errorf("the Raft log %s cannot be opened: %w (start this server with an empty data directory if its region has others, else restore that file from a backup)", l.boltLog(), err)
	}
	return openBoltLog(l.boltLog())
}

// logReader is the source of a copied log.
type logReader interface {
	LastIndex() (uint64, error)
	GetLog(index uint64, g *raft.Log) error
}

// create makes a log with the entries of another log.
func (l layout) create(kind LogKind, content logReader) error {
	var log logStore
	var err error
	if kind == WAL {
		log, err = createWAL(l.walDir(), l.logger)
	} else {
		log, err = openBoltLog(l.boltLog())
	}
	if err != nil {
		return err
	}
	return errors.Join(copyLog(log, content), log.Close())
}

// copyLog copies the entries after the last gap. Raft does not need the entries before a
// gap, because a snapshot that came from the leader holds them.
func copyLog(to raft.LogStore, from logReader) error {
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
		var batch []*raft.Log
		for size := 0; next <= last && size < scratchRetained; next++ {
			g = &raft.Log{}
			if err := from.GetLog(next, g); err != nil {
				return fmt.Errorf("copy entry %d of the log: %w", next, err)
			}
			batch = append(batch, g)
			size += len(g.Data)
		}
		if err := to.StoreLogs(batch); err != nil {
			return err
		}
	}
	return nil
}

// mark durably replaces raft.db by the marker of a kind.
func (l layout) mark(kind LogKind) error {
	if err := syncDir(l.dir); err != nil { // sync the folder first, because the marker must not name a log that is not durable
		return err
	}
	tmp := l.marker() + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(markers[kind])
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, l.marker()); err != nil {
		return err
	}
	return syncDir(l.dir)
}
