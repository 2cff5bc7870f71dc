package quorum

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/wait"
)

// A log that is locked is opened again each lockPause, for lockedFor in all. Then another process has it.
const lockPause, lockedFor = 20 * time.Millisecond, 2 * time.Second

const (
	// walFormat is the version of the content of records. walTag is the beginning of the
	// metadata of a log.
	walFormat = 1
	walTag    = "nusa-raft-log"
	// deletion is the type of a record that deletes the entries from its index on. Raft's
	// own types are small numbers.
	deletion raft.LogType = 0xff
	// walHead is the size of the header before an entry's data: stamp, first record number
	// of the write, index, time, length of the extensions, type. walEnd is the byte after
	// the data. With it no record ends in zeros. Zeros would mark a write that a power cut
	// tore.
	walHead = stampSize + 8 + 8 + 8 + 4 + 1
	walEnd  = 0xff
	// scratchRetained bounds the buffer that one write keeps for the next write.
	scratchRetained = 1 << 20
)

// walLog is the Raft log in etcd's write-ahead log: checksummed records in preallocated
// files, with one sync for each write. The library is used as etcd uses it. What the
// library calls an index is the number of a record here. These numbers only grow. A
// deletion at the end of the Raft log is a record too. A deletion at the start is a
// snapshot record of the library.
//
// All entries are also in memory. They are few, because they begin at the latest snapshot,
// and Raft shares their bytes.
type walLog struct {
	dir string

	write   sync.Mutex // held while the log is changed
	wal     *wal.WAL
	stamp   stamp
	number  uint64 // number of the latest record
	scratch []byte
	failure

	mu   sync.RWMutex // guards live: readers need not wait for a write in progress
	live []record     // without gaps
}

type record struct {
	raft.Log
	number uint64
}

// createWAL makes an empty log. openWAL opens an existing one. The caller must call Close.
func createWAL(dir string, logger hclog.Logger) (*walLog, error) {
	l := &walLog{dir: dir, failure: newFailure()}
	_, _ = rand.Read(l.stamp[:])
	var err error
	l.wal, err = wal.Create(walLogger(logger), dir, l.stamp.metadata())
	if err != nil {
		return nil, fmt.Errorf("create the Raft log in %s: %w", dir, err)
	}
	return l, nil
}

// openWAL reads the acknowledged entries. It truncates a partial write, which cannot have
// been acknowledged.
func openWAL(dir string, logger hclog.Logger) (_ *walLog, err error) {
	defer func() {
		if p := recover(); p != nil { // the library panics at some kinds of damage
			err = fmt.Errorf("%v", p)
		}
		switch {
		case errors.Is(err, syscall.ENOSPC):
			err = fmt.Errorf("the Raft log in %s cannot be opened: %w (it needs %d MB there)", dir, err, 2*wal.SegmentSizeBytes/1e6)
		case err != nil:
			err = fmt.Errorf("the Raft log in %s cannot be opened: %w (if it is damaged: start this server with an empty data directory if its region has others, else restore the log from a backup)", dir, err)
		}
	}()
	// The server ended while it created these files.
	for _, name := range glob(dir, "*.tmp") {
		if err := os.Remove(name); err != nil {
			return nil, err
		}
	}
	l := &walLog{dir: dir, failure: newFailure()}
	if err := l.repairTail(); err != nil {
		return nil, err
	}
	entries, err := l.read(walLogger(logger))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if err := l.replay(e); err != nil {
			return nil, errors.Join(err, l.wal.Close())
		}
	}
	return l, nil
}

// read opens the library's log for writing. It returns the records after the latest
// deletion at the start.
func (l *walLog) read(lg *zap.Logger) ([]*raftpb.Entry, error) {
	marks, err := wal.ValidSnapshotEntries(lg, l.dir)
	if err != nil {
		return nil, err
	}
	if len(marks) == 0 {
		return nil, errors.New("it has no record of its beginning")
	}
	mark := marks[len(marks)-1]
	w, err := wal.Open(lg, l.dir, mark)
	// A child that this process has just forked retains the lock of a closed log until it runs its program.
	for began := time.Now(); errors.Is(err, fileutil.ErrLocked) && time.Since(began) < lockedFor; {
		wait.For(context.Background(), lockPause)
		w, err = wal.Open(lg, l.dir, mark)
	}
	if err != nil {
		return nil, err
	}
	metadata, _, entries, err := w.ReadAll()
	if err == nil {
		l.stamp, err = readStamp(metadata)
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	l.wal, l.number = w, mark.GetIndex()
	return entries, nil
}

// replay applies a record to the entries in memory.
func (l *walLog) replay(e *raftpb.Entry) error {
	g, err := decode(e)
	if err != nil {
		return err
	}
	l.number++
	if e.GetIndex() != l.number {
		return fmt.Errorf("record %d is where %d should be", e.GetIndex(), l.number)
	}
	if g.Type == deletion {
		l.cut(g.Index)
		return nil
	}
	return l.add(g, l.number)
}

// add appends an entry to the entries in memory. If there is a gap before the new entry,
// that entry replaces all others: Raft leaves a gap only if a snapshot holds the earlier
// entries. Raft deletes the earlier entries first, but the server may have ended between
// the deletion and the new entry.
func (l *walLog) add(g raft.Log, number uint64) error {
	if n := len(l.live); n > 0 {
		last := l.live[n-1].Index
		if g.Index <= last {
			return fmt.Errorf("entry %d follows entry %d", g.Index, last)
		}
		if g.Index > last+1 {
			l.live = nil
		}
	}
	l.live = append(l.live, record{g, number})
	return nil
}

// cut removes from memory the entries from an index on.
func (l *walLog) cut(index uint64) {
	if len(l.live) == 0 || index > l.live[len(l.live)-1].Index {
		return
	}
	n := index - min(index, l.live[0].Index)
	clear(l.live[n:])
	l.live = l.live[:n]
}

// IsMonotonic returns true, which makes Raft delete all entries before it installs a
// snapshot.
func (l *walLog) IsMonotonic() bool { return true }

// FirstIndex returns the index of the first entry, or 0 if the log is empty.
func (l *walLog) FirstIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if len(l.live) == 0 {
		return 0, nil
	}
	return l.live[0].Index, nil
}

// LastIndex returns the index of the last entry, or 0 if the log is empty.
func (l *walLog) LastIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if len(l.live) == 0 {
		return 0, nil
	}
	return l.live[len(l.live)-1].Index, nil
}

// GetLog reads an entry from memory.
func (l *walLog) GetLog(index uint64, g *raft.Log) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if len(l.live) == 0 || index < l.live[0].Index || index > l.live[len(l.live)-1].Index {
		return raft.ErrLogNotFound
	}
	*g = l.live[index-l.live[0].Index].Log
	return nil
}

// StoreLog stores one entry.
func (l *walLog) StoreLog(g *raft.Log) error { return l.StoreLogs([]*raft.Log{g}) }

// StoreLogs returns once the entries are on disk. After an error it stores nothing more
// until a restart has read the disk.
func (l *walLog) StoreLogs(logs []*raft.Log) error {
	l.write.Lock()
	defer l.write.Unlock()
	last, _ := l.LastIndex()
	if err := checkFollows(last, logs); err != nil {
		return err
	}
	if err := l.save(logs); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, g := range logs {
		if err := l.add(*g, l.number-uint64(len(logs)-1-i)); err != nil {
			return err
		}
	}
	return nil
}

// save writes and syncs records. The caller holds l.write.
func (l *walLog) save(logs []*raft.Log) error {
	if l.err != nil {
		return l.err
	}
	size := 0
	for _, g := range logs {
		size += walHead + len(g.Data) + len(g.Extensions) + 1
	}
	buf := slices.Grow(l.scratch[:0], size)
	entries := make([]*raftpb.Entry, len(logs))
	for i, g := range logs {
		at := len(buf)
		buf = encode(buf, l.stamp, l.number+1, g)
		entries[i] = &raftpb.Entry{Index: proto.Uint64(l.number + 1 + uint64(i)), Term: &g.Term, Data: buf[at:]}
	}
	if err := l.keep(l.wal.Save(nil, entries), l.dir); err != nil {
		return err
	}
	l.number += uint64(len(logs))
	if cap(buf) <= scratchRetained {
		l.scratch = buf
	}
	return nil
}

// DeleteRange deletes entries at the start, entries at the end, or all entries.
func (l *walLog) DeleteRange(from, to uint64) error {
	l.write.Lock()
	defer l.write.Unlock()
	first, _ := l.FirstIndex()
	last, _ := l.LastIndex()
	switch part, err := partOf(first, last, from, to); {
	case err != nil || part == deletesNothing:
		return err
	case part == deletesStart:
		return l.deleteUntil(min(to, last) - first + 1)
	}
	if err := l.save([]*raft.Log{{Index: from, Type: deletion}}); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut(from)
	return nil
}

// deleteUntil deletes the first n entries, and the files that hold no other entries.
func (l *walLog) deleteUntil(n uint64) error {
	if l.err != nil {
		return l.err
	}
	mark := l.number
	if n < uint64(len(l.live)) {
		mark = l.live[n].number - 1
	}
	// The library ignores snapshots after the committed index.
	err := l.wal.Save(&raftpb.HardState{Commit: &mark}, nil)
	if err == nil {
		err = l.wal.SaveSnapshot(&walpb.Snapshot{Index: &mark, Term: proto.Uint64(0), ConfState: &raftpb.ConfState{}})
	}
	if err := l.keep(err, l.dir); err != nil {
		return err
	}
	l.mu.Lock()
	l.live = slices.Clone(l.live[n:])
	l.mu.Unlock()
	if err := l.purge(mark); err != nil {
		return fmt.Errorf("remove old files of the Raft log: %w", err)
	}
	return nil
}

// purge removes the files that hold only records up to mark, the oldest file first. It
// syncs each removal, because the library refuses to read a log in which a file is missing.
func (l *walLog) purge(mark uint64) error {
	if err := l.wal.ReleaseLockTo(mark + 1); err != nil {
		return err
	}
	names := glob(l.dir, "*.wal")
	for len(names) > 1 && firstNumber(names[1]) <= mark {
		if err := os.Remove(names[0]); err != nil {
			return err
		}
		if err := syncDir(l.dir); err != nil {
			return err
		}
		names = names[1:]
	}
	return nil
}

// newest returns how many of the newest entries fit into the given number of bytes.
func (l *walLog) newest(bytes int) uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for i, g := range slices.Backward(l.live) {
		bytes -= len(g.Data)
		if bytes < 0 {
			return uint64(len(l.live) - 1 - i)
		}
	}
	return uint64(len(l.live))
}

// Close syncs and closes the files.
func (l *walLog) Close() error {
	l.write.Lock()
	defer l.write.Unlock()
	if l.err == nil {
		l.err = raft.ErrRaftShutdown
	}
	if err := l.wal.Close(); err != nil {
		return fmt.Errorf("close the Raft log in %s: %w", l.dir, err)
	}
	return nil
}

// encode appends the data of an entry's record to b.
func encode(b []byte, s stamp, write uint64, g *raft.Log) []byte {
	at := int64(0)
	if !g.AppendedAt.IsZero() {
		at = g.AppendedAt.UnixNano()
	}
	b = append(b, s[:]...)
	b = binary.LittleEndian.AppendUint64(b, write)
	b = binary.LittleEndian.AppendUint64(b, g.Index)
	b = binary.LittleEndian.AppendUint64(b, uint64(at))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(g.Extensions)))
	b = append(b, byte(g.Type))
	b = append(b, g.Extensions...)
	b = append(b, g.Data...)
	return append(b, walEnd)
}

// decode is the inverse of encode. The entry shares the bytes of the record.
func decode(e *raftpb.Entry) (raft.Log, error) {
	b := e.GetData()
	if len(b) < walHead+1 {
		return raft.Log{}, fmt.Errorf("record %d has %d bytes, at least %d are needed", e.GetIndex(), len(b), walHead+1)
	}
	head, rest := b[stampSize+8:walHead], b[walHead:len(b)-1]
	g := raft.Log{Index: binary.LittleEndian.Uint64(head), Term: e.GetTerm(), Type: raft.LogType(head[20])}
	if at := int64(binary.LittleEndian.Uint64(head[8:])); at != 0 {
		g.AppendedAt = time.Unix(0, at)
	}
	n := int(binary.LittleEndian.Uint32(head[16:]))
	if n > len(rest) {
		return raft.Log{}, fmt.Errorf("record %d has extensions of %d bytes, but only %d", e.GetIndex(), n, len(rest))
	}
	if n > 0 {
		g.Extensions = rest[:n:n]
	}
	g.Data = rest[n:len(rest):len(rest)]
	return g, nil
}

// walLogger passes on the library's warnings, for example about a slow disk.
func walLogger(to hclog.Logger) *zap.Logger {
	enc := zapcore.NewConsoleEncoder(zapcore.EncoderConfig{MessageKey: "msg", SkipLineEnding: true})
	return zap.New(zapcore.NewCore(enc, zapcore.AddSync(lines{to}), zap.WarnLevel))
}

type lines struct{ hclog.Logger }

func (l lines) Write(p []byte) (int, error) {
	l.Error("the write-ahead log has a problem", "message", strings.ReplaceAll(string(p), "\t", " "))
	return len(p), nil
}

// glob returns the matching files of a folder, sorted by name.
func glob(dir, pattern string) []string {
	names, _ := filepath.Glob(filepath.Join(dir, pattern)) // Glob sorts, and fails only for a malformed pattern
	return names
}

// syncDir makes the creation, renaming and removal of files in a folder durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
