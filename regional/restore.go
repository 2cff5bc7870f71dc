package regional

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/regional/quorum"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Restored names the data directory of a stopped server. The region is to continue from
// that directory, because the directory is an old copy or because most servers of the
// region are lost.
type Restored struct {
	Region, DataDir string
	// RaftLog is the kind of the new log. Empty: the kind stays the same.
	RaftLog quorum.LogKind
	// Incarnation is the new incarnation of the region's log. 0 stands for the next one.
	Incarnation uint64
	Logger      *slog.Logger
}

// Restore begins a new incarnation of a region's log and returns its number. The server of
// the data directory is then the region's only server. An error that asks to run the
// command again comes after the log was written, and the next run begins one more
// incarnation. After any other error the directory is unchanged.
func Restore(r Restored) (uint64, error) {
	if _, err := os.Stat(filepath.Join(r.DataDir, "raft")); err != nil {
		return 0, fmt.Errorf("%w: data_dir: %s holds no log of a regional server (%v)", ErrConfig, r.DataDir, err)
	}
	dir, err := serve.OpenDataDir(r.DataDir, "regional/"+r.Region, "")
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	old, err := os.ReadFile(dir.Path("server-id"))
	if err != nil {
		return 0, fmt.Errorf("identity of the server: %w", err)
	}
	name := strings.TrimSpace(string(old))
	if at := strings.LastIndexByte(name, '.'); at > 0 {
		name = name[:at]
	}
	id := name + "." + uuid.NewString()[:8]
	fsm := raftlog.NewFSM()
	begin := func(index uint64) error { return r.begin(fsm, index) }
	if err := quorum.Restore(quorum.Restored{Dir: dir.Path("raft"), Log: r.RaftLog, ID: id, FSM: fsm, Begin: begin, Logger: r.Logger}); err != nil {
		return 0, err
	}
	// The restored server must not ask the other servers of the former group to join.
	if err := os.Remove(dir.Path("gossip-peers")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("forget the former servers: %w; run the command again", err)
	}
	if err := writeIdentity(dir.Path("server-id"), id); err != nil {
		return 0, fmt.Errorf("store the identity of the server: %w; run the command again", err)
	}
	return fsm.View().Cluster().Incarnation, nil
}

// begin applies the command that begins the new incarnation.
func (r *Restored) begin(fsm *raftlog.FSM, index uint64) error {
	c := fsm.View().Cluster()
	next := c.Incarnation + 1
	switch {
	case c.ID == "" || c.Region != r.Region:
		return fmt.Errorf("%w: it is the log of region %q, not of %q", state.ErrOtherCluster, c.Region, r.Region)
	case r.Incarnation != 0 && r.Incarnation < next:
		return fmt.Errorf("%w: incarnation: %d is not greater than %d, the incarnation of the log", ErrConfig, r.Incarnation, c.Incarnation)
	case r.Incarnation != 0:
		next = r.Incarnation
	}
	entry := raftlog.Entry(&state.Command{NowUnixNano: time.Now().UnixNano(), BumpIncarnation: &state.BumpIncarnation{Incarnation: next, RestoreID: uuid.NewString()}})
	if err, failed := fsm.Apply(&raft.Log{Index: index, Type: raft.LogCommand, Data: entry}).(error); failed {
		return err
	}
	return nil
}
