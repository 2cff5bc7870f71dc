package quorum

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// forgetful is an FSM without state.
type forgetful struct{}

func (forgetful) Apply(*raft.Log) any                 { return nil }
func (forgetful) Snapshot() (raft.FSMSnapshot, error) { return forgetful{}, nil }
func (forgetful) Restore(r io.ReadCloser) error       { return r.Close() }
func (forgetful) Persist(s raft.SnapshotSink) error   { return s.Close() }
func (forgetful) Release()                            {}

// TestSnapshotIsDueByBytes: a snapshot is due after enough bytes, even if only a few
// entries have them.
func TestSnapshotIsDueByBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memoryStores()
		_, trans := raft.NewInmemTransport("a")
		c := raft.DefaultConfig()
		c.LocalID, c.Logger = "a", newLogger(slog.New(slog.DiscardHandler))
		g := &Group{cfg: Config{Logger: slog.New(slog.DiscardHandler)}, meter: &meter{FSM: forgetful{}, due: make(chan struct{}, 1)}}
		var err error
		g.Raft, err = raft.NewRaft(c, g.meter, st.log, st.stable, st.snapshots, trans)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := g.Shutdown().Error(); err != nil {
				t.Error(err)
			}
		}()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.TakeSnapshots(ctx) }()
		if err := g.BootstrapCluster(raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a"}}}).Error(); err != nil {
			t.Fatal(err)
		}
		<-g.LeaderCh()
		taken := func(entries int) bool {
			for range entries {
				if err := g.Apply(bytes.Repeat([]byte{1}, snapshotAfter/4), time.Second).Error(); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			list, err := st.snapshots.List()
			if err != nil {
				t.Fatal(err)
			}
			return len(list) > 0 && list[0].Index > 0
		}
		if taken(4) {
			t.Error("a snapshot was taken before enough was applied")
		}
		if !taken(1) {
			t.Error("no snapshot was taken")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
