package quorum

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

const (
	// snapshotAfter bounds roughly how many bytes of entries a restarted server reads
	// again. That takes about a second. Raft's own threshold counts entries, but an entry
	// may have a hundred bytes or a hundred kilobytes.
	snapshotAfter = 32 << 20
	// After a snapshot, the newest trailingEntries entries stay in the log and in memory,
	// or fewer if they have more than trailingBytes. They are for followers that lag. A
	// follower that lags more gets the snapshot. At least trailingLeast entries stay,
	// because Raft cannot install a snapshot on a server that holds later, uncommitted
	// entries. Such entries were in flight, for example, when a leader was cut off.
	trailingEntries = 2048
	trailingBytes   = 8 << 20
	trailingLeast   = 64
)

// meter is an FSM that counts the bytes that were applied since the latest snapshot.
type meter struct {
	raft.FSM
	bytes atomic.Int64
	due   chan struct{} // with room for one
}

func (m *meter) Apply(l *raft.Log) any {
	if m.bytes.Add(int64(len(l.Data))) > snapshotAfter {
		select {
		case m.due <- struct{}{}:
		default:
		}
	}
	return m.FSM.Apply(l)
}

func (m *meter) Snapshot() (raft.FSMSnapshot, error) {
	m.bytes.Store(0)
	select {
	case <-m.due: // this snapshot is the one that was due
	default:
	}
	return m.FSM.Snapshot()
}

func (m *meter) Restore(r io.ReadCloser) error {
	m.bytes.Store(0)
	return m.FSM.Restore(r)
}

// TakeSnapshots takes a snapshot whenever snapshotAfter bytes were applied since the latest
// one. It runs until ctx ends.
func (g *Group) TakeSnapshots(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.meter.due:
		}
		err := g.trail()
		if err == nil {
			err = g.Snapshot().Error()
		}
		if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) && !errors.Is(err, raft.ErrRaftShutdown) {
			// The next attempt follows after the same number of bytes. Raft also tries when
			// its own threshold is reached.
			g.cfg.Logger.Warn("no snapshot was taken: a restart takes longer; is the disk full?", "error", err)
		}
	}
}

// trail sets how many entries stay in the log after the next snapshots.
func (g *Group) trail() error {
	if g.stores.disk == nil {
		return nil
	}
	c := g.ReloadableConfig()
	c.TrailingLogs = max(trailingLeast, min(trailingEntries, g.stores.disk.newest(trailingBytes)))
	return g.ReloadConfig(c)
}
