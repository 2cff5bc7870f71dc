package quorum

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/hashicorp/raft"
)

// What was stored before the end is there after it, and a tail that a new
// leader overrules is gone.
func TestStoresOnDisk(t *testing.T) {
	dir := t.TempDir()
	open := func() stores {
		t.Helper()
		s, err := openStores(dir, newLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	var logs []*raft.Log
	for i := range uint64(20) {
		logs = append(logs, &raft.Log{Index: i + 1, Term: 1, Data: make([]byte, 1<<20)})
	}
	for len(logs) > 0 {
		if err := s.log.StoreLogs(logs[:2]); err != nil {
			t.Fatal(err)
		}
		logs = logs[2:]
	}
	if err := errors.Join(s.stable.SetUint64([]byte("CurrentTerm"), 7), s.log.DeleteRange(18, 20), s.close()); err != nil {
		t.Fatal(err)
	}

	s = open()
	defer s.close()
	last, err := s.log.LastIndex()
	if err != nil || last != 17 {
		t.Fatalf("the last entry is %d (%v), want 17", last, err)
	}
	var entry raft.Log
	if err := s.log.GetLog(17, &entry); err != nil || len(entry.Data) != 1<<20 {
		t.Fatalf("entry 17 has %d bytes (%v)", len(entry.Data), err)
	}
	if term, err := s.stable.GetUint64([]byte("CurrentTerm")); err != nil || term != 7 {
		t.Fatalf("the term is %d (%v), want 7", term, err)
	}
	if !errors.Is(s.log.GetLog(18, &entry), raft.ErrLogNotFound) {
		t.Fatal("entry 18 is still there")
	}
}
