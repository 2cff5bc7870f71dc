package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/taskpage"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// copyBytes bounds one part of a copy, and copyFor the time in which a server reads for it.
	copyBytes = 512 << 10
	copyFor   = 100 * time.Millisecond
	// copyTimeout bounds one call to another server.
	copyTimeout = 10 * time.Second
	// fillEvery is the first pause between two attempts to fill the gaps, and the time after which a new gap
	// is noticed. The pause doubles up to fillMost: a gap that every server has stays, and costs nothing. While
	// a server does not respond, it doubles up to fillDisconnected.
	fillEvery        = time.Minute
	fillDisconnected = 10 * time.Minute
	fillMost         = 6 * time.Hour
)

// copyPart returns the records of one part of a copy, those that were placed last first. It ends the part when
// late is true.
func copyPart(s *Store, req *nusav1.CopyTasksRequest, late func() bool) (*nusav1.CopyTasksResponse, error) {
	out := proto.CloneOf(s.position())
	at := latestKey()
	if len(req.GetAfter()) > 0 {
		after, ok := taskpage.Decode(req.GetAfter())
		at = after
		if !ok {
			return nil, fmt.Errorf("a copy cannot go on after %x", req.GetAfter())
		}
	}
	err := s.view(func() error {
		bytes, read, steps := 0, 0, math.MaxInt
		next, err := s.scan(&selection{from: req.GetFromEvent()}, at, taskpage.Key{}, &steps, func(rec *nusav1.StoredTask) bool {
			if rec.GetEvent() >= req.GetFromEvent() {
				out.Tasks = append(out.Tasks, rec)
				bytes += proto.Size(rec)
			}
			read++
			return bytes <= copyBytes && (read%256 != 0 || !late())
		})
		if next != nil {
			out.Next = next.Append(nil)
		}
		return err
	})
	return out, err
}

// Filler fills the gaps of a history from the other servers of the region.
type Filler struct {
	Store  *Store
	Logger *slog.Logger
	// Others returns the addresses of the other servers. Dial connects to one.
	Others func() []string
	Dial   func(address string) (*grpc.ClientConn, error)
}

// Run fills gaps until ctx ends. It asks again after growing pauses, and soon after a new gap.
func (f *Filler) Run(ctx context.Context) error {
	wait := fillEvery
	asked := map[uint64]bool{} // the first events of the gaps of the last attempt
	for ctx.Err() == nil {
		moved := f.Store.moved.C()
		gaps := f.Store.position().GetGaps()
		if len(gaps) == 0 {
			select {
			case <-moved:
			case <-ctx.Done():
			}
			continue
		}
		if slices.ContainsFunc(gaps, func(g *nusav1.TaskGap) bool { return !asked[g.GetFirst()] }) {
			wait = fillEvery
		}
		clear(asked)
		for _, g := range gaps {
			asked[g.GetFirst()] = true
		}
		all := f.fill(ctx)
		f.rest(ctx, wait, asked)
		wait = nextPause(wait, all)
	}
	return nil
}

// rest waits until it is time for the next attempt, at least fillEvery. A gap that was not asked for ends it.
func (f *Filler) rest(ctx context.Context, wait time.Duration, asked map[uint64]bool) {
	for until := time.Now().Add(wait); ctx.Err() == nil && time.Now().Before(until); {
		gaps := f.Store.position().GetGaps()
		if len(gaps) == 0 || slices.ContainsFunc(gaps, func(g *nusav1.TaskGap) bool { return !asked[g.GetFirst()] }) {
			return
		}
		pause(ctx, fillEvery)
	}
}

// nextPause returns the pause after another one. all: every other server has said what it has.
func nextPause(wait time.Duration, all bool) time.Duration {
	if all {
		return min(2*wait, fillMost)
	}
	return min(2*wait, fillDisconnected)
}

// fill asks each other server which gaps it can fill, and copies these. all: every one has said what it has.
func (f *Filler) fill(ctx context.Context) (all bool) {
	all = true
	for _, address := range f.Others() {
		if len(f.Store.position().GetGaps()) == 0 {
			break
		}
		err := f.from(ctx, address)
		if err != nil {
			f.Logger.Debug("a gap in the history of tasks is not filled", "server", address, "error", err)
		}
		all = all && (err == nil || errors.Is(err, errSameGap))
	}
	return all
}

// from copies the gaps that another server does not have.
func (f *Filler) from(ctx context.Context, address string) error {
	conn, err := f.Dial(address)
	if err != nil {
		return err
	}
	defer conn.Close()
	n, err := f.fillFrom(ctx, nusav1.NewTasksClient(conn))
	if n > 0 {
		f.Logger.Info("gaps in the history of tasks are filled", "server", address, "records", n)
	}
	return err
}

// fillFrom returns the number of records that the other server sent.
func (f *Filler) fillFrom(ctx context.Context, other nusav1.TasksClient) (n int, failed error) {
	call, cancel := context.WithTimeout(ctx, copyTimeout)
	has, err := other.Copy(call, &nusav1.CopyTasksRequest{FromEvent: math.MaxUint64}) // no records, only the gaps
	cancel()
	if err != nil {
		return 0, err
	}
	for _, gap := range f.Store.position().GetGaps() {
		err := f.lacks(has, gap)
		if err == nil {
			var sent int
			sent, err = f.copy(ctx, other, gap)
			n += sent
		}
		if err != nil && (failed == nil || !errors.Is(err, errSameGap)) {
			failed = err
		}
	}
	return n, failed
}

var errSameGap = errors.New("the other server has a gap there, too")

// lacks returns why another server cannot fill a gap.
func (f *Filler) lacks(other *nusav1.CopyTasksResponse, gap *nusav1.TaskGap) error {
	switch {
	case other.GetCluster() != f.Store.position().GetCluster():
		return errors.New("the other server has the history of another log")
	case other.GetEvent()+1 < gap.GetNext():
		return fmt.Errorf("the other server has events up to %d, event %d is needed", other.GetEvent(), gap.GetNext()-1)
	case slices.ContainsFunc(other.GetGaps(), func(g *nusav1.TaskGap) bool { return g.GetFirst() < gap.GetNext() && gap.GetFirst() < g.GetNext() }):
		return errSameGap
	}
	return nil
}

// copy fills one gap from another server. It returns the number of records that the server sent.
func (f *Filler) copy(ctx context.Context, other nusav1.TasksClient, gap *nusav1.TaskGap) (n int, err error) {
	req := &nusav1.CopyTasksRequest{FromEvent: gap.GetFirst()}
	for {
		call, cancel := context.WithTimeout(ctx, copyTimeout)
		part, err := other.Copy(call, req)
		cancel()
		if err == nil {
			err = f.lacks(part, gap)
		}
		if err != nil {
			return n, err
		}
		if err := mergeAll(f.Store, part.GetTasks()); err != nil {
			return n, err
		}
		n += len(part.GetTasks())
		if len(part.GetNext()) == 0 {
			return n, forgetGap(f.Store, gap)
		}
		req.After = part.GetNext()
	}
}

// mergeAll adds copies of records to the history.
func mergeAll(s *Store, list []*nusav1.StoredTask) error {
	for _, rec := range list {
		if _, ok := taskpage.ParseID(rec.GetTask().GetId()); !ok {
			return fmt.Errorf("the other server has a record with the id %q", rec.GetTask().GetId())
		}
	}
	return s.update(func(b *batch) error {
		for _, rec := range list {
			if err := b.merge(rec); err != nil {
				return err
			}
		}
		return nil
	})
}

// merge adds a copy of a record. It writes nothing if the copy tells nothing that is not known.
func (b *batch) merge(rec *nusav1.StoredTask) error {
	id, _ := taskpage.ParseID(rec.GetTask().GetId())
	var have *nusav1.StoredTask
	var err error
	e := b.recent.byID[id]
	if e != nil {
		have, err = b.load(e)
	} else {
		have, err = b.sealed(id)
	}
	if err != nil {
		return err
	}
	if have == nil {
		return b.put(rec, false)
	}
	before := proto.CloneOf(have)
	merged := merge(have, rec)
	derive(merged.Task)
	if proto.Equal(before, merged) {
		return nil
	}
	return b.put(merged, e == nil)
}

// forgetGap removes a gap that is filled.
func forgetGap(s *Store, gap *nusav1.TaskGap) error {
	return s.update(func(b *batch) error {
		b.at.Gaps = slices.DeleteFunc(b.at.Gaps, func(g *nusav1.TaskGap) bool { return g.GetFirst() == gap.GetFirst() && g.GetNext() == gap.GetNext() })
		return nil
	})
}
