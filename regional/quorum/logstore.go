package quorum

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// failure holds the first error of a log's writes. After that error the log accepts no more
// entries: only a restart, which reads the disk, can show what the disk holds after the
// last acknowledged entry.
type failure struct {
	err    error
	broken chan error // receives err, once
}

func newFailure() failure { return failure{broken: make(chan error, 1)} }

// keep stores the first error. It returns that error to its caller and to all later
// callers.
func (f *failure) keep(err error, dir string) error {
	if err != nil && f.err == nil {
		f.err = fmt.Errorf("write the Raft log in %s: %w (nothing is written any more: repair the disk and start the server again)", dir, err)
		f.broken <- f.err
	}
	return f.err
}

func (f *failure) brokenCh() <-chan error { return f.broken }

// checkFollows returns an error unless the entries come after last and have no gap between
// them. A gap between last and the first entry is allowed: Raft leaves a gap where a
// snapshot holds the missing entries.
func checkFollows(last uint64, logs []*raft.Log) error {
	for i, g := range logs {
		if g.Index <= last || i > 0 && g.Index != last+1 {
			return fmt.Errorf("store entry %d of the Raft log after entry %d: it is not the next one", g.Index, last)
		}
		last = g.Index
	}
	return nil
}

// deletedPart says which part of a log a DeleteRange deletes.
type deletedPart int

const (
	deletesNothing deletedPart = iota
	deletesStart               // a DeleteRange of the whole log counts as deletesStart
	deletesEnd
)

// partOf classifies a DeleteRange of a log that holds the entries first to last. first is 0
// if the log is empty. A range in the middle is an error.
func partOf(first, last, from, to uint64) (deletedPart, error) {
	switch {
	case first == 0 || from > to || to < first || from > last:
		return deletesNothing, nil
	case from <= first:
		return deletesStart, nil
	case to < last:
		return deletesNothing, fmt.Errorf("delete entries %d to %d of the Raft log, which holds %d to %d: they are neither its start nor its end", from, to, first, last)
	}
	return deletesEnd, nil
}
