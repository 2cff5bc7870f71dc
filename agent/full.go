package agent

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// minFree is how much of the data folder's disk must be free to begin something
// new: below, a task could not even write its first lines.
const minFree = 8 << 20

// storeReserve is how much of the disk the local store holds beyond what it
// uses, so that it can be written when others have filled the disk. The orders
// and records of a thousand allocations take less.
const storeReserve = 4 << 20

// errOwed: orders were taken, and cannot be stored yet.
var errOwed = errors.New("orders not stored")

// refuseNew ends what was ordered and could not be stored: it never starts
// here. Orders about what is known are carried out, because to stop something
// may be what makes room; they are written, and acknowledged, later.
func (e *engine) refuseNew(id string, cause error) {
	a := e.allocs[id]
	if a.alloc.Want != reconcile.Run {
		return
	}
	a.unstored = true
	a.act.End = &reconcile.Outcome{State: reconcile.Failed, Declined: true, Reason: reconcile.ReasonInsufficientDisk, Message: cause.Error()}
	e.log.Warn("declined", "alloc", id, "reason", a.act.End.Reason, "message", a.act.End.Message)
}

// orderNotes are a change of orders.
func orderNotes(fresh []*nusav1.AllocOrder, removed []string, at link.Position) notes {
	n := newNotes()
	for _, o := range fresh {
		n.orders[o.GetAllocation().GetId()] = o
	}
	for _, id := range removed {
		n.forget[id] = true
	}
	n.position = &at
	return n
}

// noRoom says why nothing new can be kept here; "" = it can.
func (e *engine) noRoom() string {
	if err := e.keeper.failed(); err != nil {
		return err.Error()
	}
	var s unix.Statfs_t
	if err := unix.Statfs(e.node.allocsDir, &s); err != nil {
		return fmt.Sprintf("the data folder: %v", err)
	}
	if free := int64(s.Bavail) * s.Bsize; free < minFree {
		return fmt.Sprintf("%d bytes are free on the disk of the data folder %s, at least %d are needed", free, e.node.allocsDir, minFree)
	}
	return ""
}

// openReserved opens the file of the store and reserves room for it, where the
// file system can and has it.
func openReserved(path string, flag int, perm os.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flag, perm)
	if err != nil {
		return nil, err
	}
	if fi, err := f.Stat(); err == nil {
		_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, fi.Size()+storeReserve)
	}
	return f, nil
}
