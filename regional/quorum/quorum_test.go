package quorum

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/regional/gossip"
)

// A server whose log takes no more ends, and says why: it could neither lead nor
// follow, and nothing but a restart helps.
func TestRunEndsWithLog(t *testing.T) {
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
		ID: "a", Dir: t.TempDir(), Net: network.Host(), Listener: lis, Advertise: addr, Expect: 1,
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
	log := g.stores.log.(*walLog)
	log.write.Lock()
	err = log.wal.Close() // so that the sync fails
	log.write.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if g.Apply([]byte("x"), 0).Error() == nil {
		t.Error("an entry was acknowledged that is nowhere")
	}
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("it ended with %v", err)
	}
}
