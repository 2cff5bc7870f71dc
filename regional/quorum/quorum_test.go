package quorum

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/regional/gossip"
)

// A server whose log takes no more entries ends and says why: the server could
// neither lead nor follow, and only a restart helps.
func TestRunEndsWithLog(t *testing.T) {
	forEachLog(t, testRunEndsWithLog)
}

func testRunEndsWithLog(t *testing.T, kind LogKind) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	members, err := gossip.Listen(t.Context(), gossip.Config{Net: network.Host(), Listen: "127.0.0.1:0", Advertise: "127.0.0.1", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer members.Close()
	const beat = 50 * time.Millisecond
	addr := lis.Addr().String()
	g, err := Open(Config{
		ID: "a", Dir: t.TempDir(), Log: kind, Net: network.Host(), Listener: lis, Advertise: addr, Expect: 1,
		Heartbeat: beat, Election: beat, LeaderLease: beat, Commit: beat / 10, ReplaceAfter: time.Minute,
		Gossip: members, FSM: forgetful{}, Cluster: func() string { return "" }, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if err := members.SetLocal(gossip.Meta{ID: "a", Raft: addr, Expect: 1}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- g.Run(t.Context()) }()
	<-g.LeaderCh()
	breakLog(t, g.stores.disk)
	if g.Apply([]byte("x"), 0).Error() == nil {
		t.Error("an entry was acknowledged that is not stored")
	}
	if err := <-ended; !errors.Is(err, os.ErrClosed) && !errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		t.Errorf("Run returned %v", err)
	}
}
