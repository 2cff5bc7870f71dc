package quorum

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/regional/gossip"
)

// openAlone starts the only server of a group and waits until it leads. The channel ended
// receives the result of Run.
func openAlone(t *testing.T, dir string, kind LogKind, fsm raft.FSM) (g *Group, ended <-chan error) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	members, err := gossip.Listen(t.Context(), gossip.Config{Net: network.Host(), Listen: "127.0.0.1:0", Advertise: "127.0.0.1", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(members.Close)
	const beat = 50 * time.Millisecond
	addr := lis.Addr().String()
	g, err = Open(Config{
		ID: "a", Dir: dir, Log: kind, Net: network.Host(), Listener: lis, Advertise: addr, Expect: 1,
		Heartbeat: beat, Election: beat, LeaderLease: beat, Commit: beat / 10, ReplaceAfter: time.Minute,
		Gossip: members, FSM: fsm, Cluster: func() string { return "" }, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := members.SetLocal(gossip.Meta{ID: "a", Raft: addr, Expect: 1}); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- g.Run(t.Context()) }()
	<-g.LeaderCh()
	return g, result
}

// TestRunEndsWithLog: a server ends and returns the reason when its log accepts no more
// entries. It could neither lead nor follow, and only a restart helps.
func TestRunEndsWithLog(t *testing.T) {
	forEachLog(t, func(t *testing.T, kind LogKind) {
		g, ended := openAlone(t, t.TempDir(), kind, forgetful{})
		defer g.Close()
		breakLog(t, g.stores.disk)
		if g.Apply([]byte("x"), 0).Error() == nil {
			t.Error("an entry was acknowledged that is not stored")
		}
		if err := <-ended; !errors.Is(err, os.ErrClosed) && !errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
			t.Errorf("Run returned %v", err)
		}
	})
}

// counter is an FSM that counts entries.
type counter struct {
	forgetful
	entries atomic.Int64
}

func (c *counter) Apply(*raft.Log) any { c.entries.Add(1); return nil }

// TestServerContinuesWithOtherLog: a server that is started with the other kind of log has all
// its entries and its term.
func TestServerContinuesWithOtherLog(t *testing.T) {
	dir := t.TempDir()
	var term uint64
	for i, kind := range []LogKind{WAL, BoltDB, WAL} {
		var fsm counter
		g, _ := openAlone(t, dir, kind, &fsm)
		if g.Existing() != (i > 0) {
			t.Errorf("start %d: existing %v", i, g.Existing())
		}
		if err := g.Barrier(time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		if got := fsm.entries.Load(); got != int64(i) {
			t.Errorf("start %d with %s: %d entries, want %d", i, kind, got, i)
		}
		if now := g.CurrentTerm(); now <= term {
			t.Errorf("start %d: term %d after %d", i, now, term)
		} else {
			term = now
		}
		if err := errors.Join(g.Apply([]byte("x"), time.Second).Error(), g.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
