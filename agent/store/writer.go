package store

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/agent/retry"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Writer is the only writer to the store while the agent runs. Records are written later,
// so that many changes share one transaction. A crash may lose records, which does no harm,
// because the drivers know the true state. A crash does not lose the end of an allocation,
// because the end is durable before it is reported. Changes that cannot be written because
// the disk is full stay pending, and the write is repeated.
type Writer struct {
	store       func(Batch) error // writes a batch as a whole and makes it durable
	log         *slog.Logger
	onRecovered func(context.Context)
	work        chan struct{} // capacity 1

	writing sync.Mutex // held while a batch is being written

	mu      sync.Mutex
	pending Batch
	failure error // the error of the latest write, or nil
}

// NewWriter returns the writer of a store. write writes a batch as a whole and makes it
// durable. onRecovered is called after a successful write that follows a failed one.
func NewWriter(write func(Batch) error, log *slog.Logger, onRecovered func(context.Context)) *Writer {
	return &Writer{store: write, log: log, onRecovered: onRecovered, work: make(chan struct{}, 1), pending: NewBatch()}
}

// PutRecord makes the latest record of an allocation pending.
func (w *Writer) PutRecord(id string, act reconcile.Actual, rep *nusav1.AllocReport) {
	rec, err := recordOf(act, rep)
	if err != nil {
		panic(fmt.Sprintf("report of %s: %v", id, err)) // impossible: the agent's reports are valid UTF-8
	}
	w.mu.Lock()
	w.pending.Records[id] = rec
	w.mu.Unlock()
	w.wake()
}

// Remove makes the deletion of all data of an allocation pending.
func (w *Writer) Remove(id string) {
	b := NewBatch()
	b.Removed[id] = true
	w.Enqueue(b)
}

// Enqueue makes a batch pending. Run writes the pending changes later.
func (w *Writer) Enqueue(b Batch) {
	w.mu.Lock()
	w.pending = w.pending.with(b)
	w.mu.Unlock()
	w.wake()
}

func (w *Writer) wake() {
	select {
	case w.work <- struct{}{}:
	default:
	}
}

// Run writes pending changes until ctx ends. Changes that are pending at the end need a
// Flush.
func (w *Writer) Run(ctx context.Context) error {
	for {
		select {
		case <-w.work:
		case <-ctx.Done():
			return nil
		}
		backOff := retry.New()
		failed := w.Err() != nil
		for w.Flush() != nil {
			failed = true
			if !retry.Sleep(ctx, backOff.NextBackOff()) {
				return nil
			}
		}
		if failed {
			w.onRecovered(ctx)
		}
	}
}

// Flush writes all pending changes and returns when they are durable.
func (w *Writer) Flush() error { return w.Write(NewBatch()) }

// Write makes a batch and all pending changes durable. After an error the batch is
// neither durable nor pending.
func (w *Writer) Write(more Batch) error {
	w.writing.Lock()
	defer w.writing.Unlock()
	w.mu.Lock()
	taken := w.pending
	w.pending = NewBatch()
	w.mu.Unlock()
	all := taken
	if !more.empty() {
		all = taken.with(more)
	}
	if all.empty() {
		return nil
	}
	err := w.store(all)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("write to the local store: %w", err)
		w.pending = taken.with(w.pending)
	}
	switch {
	case err != nil && w.failure == nil:
		w.log.Error("the local store cannot be written: new work is declined and ends are not reported until it can", "error", err)
		w.wake()
	case err == nil && w.failure != nil:
		w.log.Info("the local store can be written again")
	}
	w.failure = err
	return err
}

// Err returns the error of the latest write, or nil.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure
}
