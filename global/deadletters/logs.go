package deadletters

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/nusa-scheduler/nusa/global/deadletters/plan"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// mostLines and mostLog bound what is stored of a log.
	mostLines, mostLog = 20, 4 << 10
	// mostRead bounds what is read of a log, and readLimit the time for it.
	mostRead  = 256 << 10
	readLimit = 5 * time.Second
	// mostLogs bounds the dead letters that wait for their logs. The others get none.
	mostLogs   = 1000
	logReaders = 4
	// recent is how old a dead letter may be whose log a new active server reads.
	recent = 10 * time.Minute
)

// queueLog lets the log of a dead letter be read, if not too many wait.
func queueLog(b *Book, id string) {
	select {
	case b.logs <- id:
	default:
	}
}

// queueRecentLogs lets the logs be read that the server of the term before may have left.
func queueRecentLogs(b *Book) {
	b.st.Lock()
	defer b.st.Unlock()
	for _, e := range b.order {
		if time.Since(e.rec.GetCreated().AsTime()) < recent {
			queueLog(b, e.rec.GetId())
		}
	}
}

// readLogs reads the logs of the dead letters that wait for it.
func readLogs(ctx context.Context, b *Book) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case id := <-b.logs:
			if err := readLog(ctx, b, id); err != nil {
				b.cfg.Term.Log.Debug("the log of a dead letter is not stored", "deadletter", id, "error", err)
			}
		}
	}
}

// readLog reads and stores the end of the log of the last attempt.
func readLog(ctx context.Context, b *Book, id string) error {
	b.st.Lock()
	e := b.byID[id]
	b.st.Unlock()
	if e == nil || len(e.rec.GetAttempts()) == 0 {
		return nil
	}
	if _, has, _, err := b.cfg.Term.Store.Get(ctx, logKey(id)); err != nil || has {
		return err
	}
	last := e.rec.GetAttempts()[len(e.rec.GetAttempts())-1]
	call, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	conn, err := b.cfg.Term.Dial(last.GetRegion())
	if err != nil {
		return err
	}
	stream, err := nusav1.NewAllocationsClient(conn).Logs(call, &nusav1.LogsRequest{
		Allocation: last.GetAllocation(), Task: last.GetFailure().GetTask(), Stdout: true, Stderr: true, TailLines: mostLines,
	})
	if err != nil {
		return err
	}
	var streams [2][]byte // stdout, stderr
	for read := 0; read < mostRead; {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		to := 0
		if chunk.GetStderr() {
			to = 1
		}
		streams[to] = append(streams[to], chunk.GetData()...)
		read += len(chunk.GetData())
	}
	text := plan.Join(string(streams[0]), string(streams[1]), mostLines, mostLog)
	if text == "" {
		return nil
	}
	_, err = b.cfg.Term.Commit.Do(ctx, func(t *state.Tx) error {
		if b.present(t, id) == nil {
			return nil
		}
		return state.PutOther(t, logKey(id), &nusav1.DeadLetterRecord{DeadLetter: &nusav1.DeadLetter{Log: text}})
	})
	return err
}
