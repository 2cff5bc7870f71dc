package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// skippedIndexes is how many log indices a restored group skips. The lost part of the
// former log cannot have had so many entries, so no index is used twice.
const skippedIndexes = math.MaxUint32 + 1

// Restored describes the directory of a server whose group cannot go on, because its files
// are an old copy or most servers of the group are lost.
type Restored struct {
	Dir string
	// Log is the new kind of log of the directory. Empty: the present kind stays, or WAL
	// for a directory of an earlier version.
	Log LogKind
	// ID is the server's new id. With a new id, no server of the former group takes this
	// server for a member.
	ID  string
	FSM raft.FSM
	// Begin changes the FSM at the first index of the new group. The FSM then has all
	// entries of the former log.
	Begin  func(index uint64) error
	Logger *slog.Logger
}

// Restore makes the server of a directory the only member of a new group. The new group
// begins with the state of the former one. If the error asks to run the command again, the
// new group may have begun. After any other error the directory is unchanged.
func Restore(r Restored) (err error) {
	log := newLogger(r.Logger)
	have, err := layout{r.Dir, log}.marked()
	if err != nil {
		return fmt.Errorf("look for Raft's log in %s: %w", r.Dir, err)
	}
	st, err := openStores(r.Dir, cmp.Or(r.Log, have, WAL), log)
	if err != nil {
		return err
	}
	if err := r.restore(st, log); err != nil {
		return errors.Join(err, st.close())
	}
	if err := st.close(); err != nil {
		return fmt.Errorf("close Raft's log in %s: %w; run the command again", r.Dir, err)
	}
	return nil
}

// restore replaces the log in open stores.
func (r Restored) restore(st stores, log hclog.Logger) error {
	last, err := lastIndex(st)
	if err != nil {
		return fmt.Errorf("read Raft's log in %s: %w", r.Dir, err)
	}
	first := last + skippedIndexes
	c := raft.DefaultConfig()
	c.LocalID, c.Logger, c.NoLegacyTelemetry = raft.ServerID(r.ID), log, true
	members := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: c.LocalID, Address: "unknown"}}} // gossip supplies the address
	_, trans := raft.NewInmemTransport("")
	fsm := &restoredFSM{FSM: r.FSM, begin: func() error { return r.Begin(first) }}
	snapshots := &restoredSnapshots{SnapshotStore: st.snapshots, first: first}
	err = raft.RecoverCluster(c, fsm, st.log, st.stable, snapshots, trans, members)
	if fsm.err != nil {
		err = fsm.err // Raft's error has only the text of fsm.err
	}
	switch {
	case err == nil:
		return nil
	case snapshots.began:
		return fmt.Errorf("restore Raft's log in %s: %w; run the command again", r.Dir, err)
	}
	return fmt.Errorf("restore Raft's log in %s: %w", r.Dir, err)
}

// lastIndex returns the last index of a log and its snapshots.
func lastIndex(st stores) (uint64, error) {
	last, err := st.log.LastIndex()
	if err != nil {
		return 0, err
	}
	snapshots, err := st.snapshots.List()
	for _, s := range snapshots {
		last = max(last, s.Index)
	}
	return last, err
}

// restoredFSM reads a former log. Before its snapshot it calls begin once.
type restoredFSM struct {
	raft.FSM
	begin func() error
	err   error // the first error of Apply or begin
}

func (f *restoredFSM) Apply(l *raft.Log) any {
	r := f.FSM.Apply(l)
	if err, failed := r.(error); failed && f.err == nil {
		f.err = err
	}
	return r
}

func (f *restoredFSM) Snapshot() (raft.FSMSnapshot, error) {
	if f.err != nil {
		return nil, f.err
	}
	f.err = f.begin()
	if f.err != nil {
		return nil, f.err
	}
	return f.FSM.Snapshot()
}

// restoredSnapshots stores a snapshot at the first index of the new group.
type restoredSnapshots struct {
	raft.SnapshotStore
	first uint64
	began bool // true when a snapshot may have been stored
}

func (s *restoredSnapshots) Create(version raft.SnapshotVersion, _, term uint64, c raft.Configuration, _ uint64, t raft.Transport) (raft.SnapshotSink, error) {
	s.began = true
	return s.SnapshotStore.Create(version, s.first, term, c, s.first, t)
}
