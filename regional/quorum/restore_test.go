package quorum

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

var errDisk = errors.New("the disk is full")

// noDelete is a log that deletes nothing. noRead is a log that cannot be read.
type noDelete struct{ raft.LogStore }

func (noDelete) DeleteRange(uint64, uint64) error { return errDisk }

type noRead struct{ raft.LogStore }

func (noRead) GetLog(uint64, *raft.Log) error { return errDisk }

// TestFailedRestoreSaysWhetherToRunAgain: once the snapshot of the new group may be stored,
// only another run helps. After an earlier error everything is as it was.
func TestFailedRestoreSaysWhetherToRunAgain(t *testing.T) {
	for _, c := range []struct {
		name  string
		fails func(raft.LogStore) raft.LogStore
		again bool
	}{
		{"the former log stays", func(l raft.LogStore) raft.LogStore { return noDelete{l} }, true},
		{"the former log is damaged", func(l raft.LogStore) raft.LogStore { return noRead{l} }, false},
	} {
		st := memoryStores()
		if err := st.log.StoreLogs([]*raft.Log{{Index: 1, Term: 1, Type: raft.LogCommand}, {Index: 2, Term: 1, Type: raft.LogCommand}}); err != nil {
			t.Fatal(err)
		}
		if err := st.stable.SetUint64([]byte("CurrentTerm"), 1); err != nil {
			t.Fatal(err)
		}
		st.log = c.fails(st.log)
		log := slog.New(slog.DiscardHandler)
		r := Restored{Dir: "raft", ID: "a.1", FSM: forgetful{}, Begin: func(uint64) error { return nil }, Logger: log}
		err := r.restore(st, newLogger(log))
		if err == nil || !strings.Contains(err.Error(), errDisk.Error()) || strings.Contains(err.Error(), "run the command again") != c.again {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
