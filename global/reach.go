package global

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/wait"
)

// reachEvery is how often a standby asks its store for a sign of life. reachWait is how long it
// waits for the answer.
const reachEvery, reachWait = time.Second, 2 * time.Second

// located is a store over a network, which can be out of reach.
type located interface {
	// Where names the store, for example "etcd at 10.0.0.1:7602".
	Where() string
}

// reach knows whether the store answers. The zero value assumes that it does. Safe for concurrent
// use.
type reach struct{ silent atomic.Pointer[string] }

// why returns "etcd at ADDR does not answer", or "" while the store answers.
func (r *reach) why() string {
	if text := r.silent.Load(); text != nil {
		return *text
	}
	return ""
}

// err returns the error of calls while no server is active because the store does not answer. It is
// nil while the store answers.
func (r *reach) err() error {
	why := r.why()
	if why == "" {
		return nil
	}
	return rpcerr.Error{
		Code: codes.Unavailable, RetryAfter: state.RetryAfter,
		Message: "no global server is active: " + why,
	}.Err()
}

// note stores whether the store answered, and reports whether that changed.
func (r *reach) note(where string, answered bool) (changed bool) {
	if answered {
		return r.silent.Swap(nil) != nil
	}
	text := where + " does not answer"
	return r.silent.Swap(&text) == nil
}

// follow asks a store repeatedly whether it answers, until ctx ends. The active server need not
// ask: without its store it does not stay active.
func (r *reach) follow(ctx context.Context, asked store.Store, active func() bool, log *slog.Logger) error {
	at, ok := asked.(located)
	if !ok {
		return nil
	}
	for range wait.Ticks(ctx, reachEvery) {
		answered := active() || answers(ctx, asked)
		if ctx.Err() != nil || !r.note(at.Where(), answered) {
			continue
		}
		if answered {
			log.Info(at.Where() + " answers again")
		} else {
			log.Warn(at.Where()+" does not answer", "effect", "this server cannot become active")
		}
	}
	return ctx.Err()
}

// answers reports whether a store answers. An error that the store returned is an answer too.
func answers(ctx context.Context, asked store.Store) bool {
	ctx, cancel := context.WithTimeout(ctx, reachWait)
	defer cancel()
	_, _, _, err := asked.Get(ctx, state.ClusterKey)
	return !errors.Is(err, store.ErrNoQuorum)
}

// cause returns why a server is not active. When the store is out of reach, the error of the
// campaign says only that it was canceled, so cause names the store instead.
func (r *reach) cause(err error) error {
	if why := r.why(); why != "" {
		return errors.New(why)
	}
	return err
}
