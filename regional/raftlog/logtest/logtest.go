// Package logtest is the Raft log of one server, for tests.
package logtest

import (
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/regional/raftlog"
)

// Log implements raftlog.Log without other servers and without a disk. Make it with New.
type Log struct {
	fsm     *raftlog.FSM
	release <-chan struct{}
	last    atomic.Uint64
}

// New returns a log whose entries the fsm applies. last is the index of the latest entry that the
// fsm has applied already. The log commits its entries once release is closed. If release is nil, the
// log commits each entry at once.
func New(fsm *raftlog.FSM, last uint64, release <-chan struct{}) *Log {
	l := &Log{fsm: fsm, release: release}
	l.last.Store(last)
	return l
}

// LastIndex returns the index of the latest entry.
func (l *Log) LastIndex() uint64 { return l.last.Load() }

// Apply appends an entry.
func (l *Log) Apply(data []byte, _ time.Duration) raft.ApplyFuture {
	e := &entry{log: l, data: raft.Log{Index: l.last.Add(1), Data: data}}
	if l.release == nil {
		e.resp = l.fsm.Apply(&e.data)
	}
	return e
}

// entry is the future of one entry.
type entry struct {
	raft.ApplyFuture
	log  *Log
	data raft.Log
	resp any
}

func (e *entry) Error() error {
	if e.log.release != nil {
		<-e.log.release
		e.resp = e.log.fsm.Apply(&e.data)
	}
	return nil
}

func (e *entry) Response() any { return e.resp }
