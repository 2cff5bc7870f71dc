package objects

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/wait"
)

const (
	// reportEvery and reportBurst bound the events about one object.
	reportEvery, reportBurst = time.Minute, 5
	// RecentLoss is how long the alarm about events that were lost stays.
	RecentLoss = time.Hour
)

// Worker serves one object until ctx ends.
type Worker[R any] interface {
	// Set gives the worker its record, before Run and after each change.
	Set(rec R)
	Run(ctx context.Context)
}

// Crew has a worker for each object. A slow worker delays no other one.
type Crew[R any, W Worker[R]] struct {
	// Begin makes the worker of an object.
	Begin func(name string, rec R) W
	// ID is the same for all records of an object, and another one for an object that was created again
	// with the same name. Revision changes with each record.
	ID       func(R) string
	Revision func(R) int64

	mu      sync.Mutex
	members map[string]*member[W]
	// ending has the latest worker of each object that was removed, until the worker has ended.
	ending  map[string]*member[W]
	running sync.WaitGroup
}

type member[W any] struct {
	worker   W
	id       string
	revision int64
	cancel   context.CancelFunc
	ended    chan struct{}
}

// Follow makes the workers those of the stored records. A worker of an object that was created again
// begins when the earlier one has ended.
func (c *Crew[R, W]) Follow(ctx context.Context, stored map[string]R) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.members == nil {
		c.members, c.ending = map[string]*member[W]{}, map[string]*member[W]{}
	}
	for name, m := range c.members {
		if rec, ok := stored[name]; !ok || c.ID(rec) != m.id {
			m.cancel()
			c.ending[name] = m
			delete(c.members, name)
		}
	}
	for name, rec := range stored {
		m := c.members[name]
		if m == nil {
			m = c.begin(ctx, name, rec)
		}
		if at := c.Revision(rec); m.revision != at {
			m.revision = at
			m.worker.Set(rec)
		}
	}
}

// begin begins the worker of an object. The lock is held.
func (c *Crew[R, W]) begin(ctx context.Context, name string, rec R) *member[W] {
	ctx, cancel := context.WithCancel(ctx)
	before := c.ending[name]
	m := &member[W]{worker: c.Begin(name, rec), id: c.ID(rec), revision: c.Revision(rec), cancel: cancel, ended: make(chan struct{})}
	m.worker.Set(rec)
	c.members[name] = m
	c.running.Go(func() {
		if before != nil {
			<-before.ended
		}
		m.worker.Run(ctx)
		c.end(name, m)
	})
	return m
}

// end notes that a worker has ended.
func (c *Crew[R, W]) end(name string, m *member[W]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(m.ended)
	if c.ending[name] == m {
		delete(c.ending, name)
	}
}

// Stop ends all workers, and waits for them. Follow must not be called again.
func (c *Crew[R, W]) Stop() {
	c.mu.Lock()
	for _, m := range c.members {
		m.cancel()
	}
	c.mu.Unlock()
	c.running.Wait()
}

// Of returns the worker of an object.
func (c *Crew[R, W]) Of(name string) (worker W, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[name]
	if m == nil {
		return worker, false
	}
	return m.worker, true
}

// All returns the workers and the names of their objects, sorted by name.
func (c *Crew[R, W]) All() (names []string, workers []W) {
	c.mu.Lock()
	defer c.mu.Unlock()
	names = slices.Sorted(maps.Keys(c.members))
	for _, name := range names {
		workers = append(workers, c.members[name].worker)
	}
	return names, workers
}

// Reporter returns a function that adds events about one object, at most five at once and one a minute.
func Reporter(now func() time.Time, add func(kind, subject, format string, args ...any)) func(kind, subject, format string, args ...any) {
	pace := wait.NewPace(reportEvery, reportBurst)
	return func(kind, subject, format string, args ...any) {
		if _, ok := pace.Take(now()); ok {
			add(kind, subject, format, args...)
		}
	}
}
