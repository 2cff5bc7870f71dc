package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/placer"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/global/uplink"
	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/submits"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// watchBurst and watchPause bound how often a watch sends. After a quiet time it sends watchBurst
// changes at once, and then one in each watchPause. A job in three regions changes about watchBurst
// times until it runs.
const (
	watchPause = 100 * time.Millisecond
	watchBurst = 10
)

// TermConfig holds the parts of one leadership term that the services need.
type TermConfig struct {
	// Context ends with the term.
	Context context.Context
	State   *state.State
	Commit  *state.Committer
	Store   store.Store
	// Renew ends the term, so that the next term begins.
	Renew func(why error)
	// ServeRegion serves the stream of a region's master.
	ServeRegion func(uplink.Stream) error
	Log         *slog.Logger
	// Repairer compares the tiers: *repair.Repairer.
	Repairer Repairer
}

// Repairer compares the tiers, and repairs what differs.
type Repairer interface {
	// Now compares everything, or one region.
	Now(ctx context.Context, region string) []*nusav1.ReconcileResult
}

// Term holds the state of the services for one leadership term.
type Term struct {
	TermConfig
	// specs are the checked specs of submits.
	specs submits.Cache[checkedSpec]
	// matrixChanges holds the changes of the matrix that watches get.
	matrixChanges topo.WatchLog
	// instanceWatches is the number of watches that follow the instances of all regions.
	instanceWatches atomic.Int32
	// queue has the places of groups that wait for a region.
	queue placer.Queue
	// checks has capacity 1, so that only one check of the matrix runs at a time.
	checks chan struct{}
}

// NewTerm returns the state of the services for a new term.
func NewTerm(cfg TermConfig) *Term {
	return &Term{TermConfig: cfg, checks: make(chan struct{}, 1)}
}

// Tick drops the data that idle watches have left. It is called once in each report interval.
func (t *Term) Tick() { t.matrixChanges.DropIdle(t.State.Clock()) }

// follow calls send immediately. It calls send again each time the channel that send returned is
// closed. It ends when the caller's context or the term ends, or when send returns no channel.
// Changes that come too fast are sent together: see watchPause.
func (t *Term) follow(ctx context.Context, send func() (changed <-chan struct{}, err error)) error {
	return t.followAgain(ctx, func() (<-chan struct{}, time.Duration, error) {
		changed, err := send()
		return changed, 0, err
	})
}

// followAgain is like follow, but calls send also when the time has passed that send returned. 0: it waits only for the
// channel.
func (t *Term) followAgain(ctx context.Context, send func() (changed <-chan struct{}, again time.Duration, err error)) error {
	pace := wait.NewPace(watchPause, watchBurst)
	for {
		pace.Wait(ctx)
		changed, again, err := send()
		if err != nil || changed == nil {
			return err
		}
		var due <-chan time.Time
		if again > 0 {
			due = time.After(again)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.Context.Done():
			return rpcError(state.ErrNotActive)
		case <-changed:
		case <-due:
		}
	}
}

// region returns a region in the form of the API, or NOT_FOUND if it does not exist.
func (t *Term) region(name string) (*nusav1.Region, error) {
	t.State.Lock()
	defer t.State.Unlock()
	if r := t.State.Regions[name]; r != nil {
		return r.ToProto(t.State.Sight()), nil
	}
	return nil, regionNotFound(t.State, name)
}

// regions returns all regions that have the labels, sorted by name.
func (t *Term) regions(labels map[string]string) []*nusav1.Region {
	t.State.Lock()
	defer t.State.Unlock()
	var out []*nusav1.Region
	for _, name := range t.State.RegionNames() {
		r := t.State.Regions[name]
		if filter.Labels(r.Record.GetDefinition().GetLabels(), labels) {
			out = append(out, r.ToProto(t.State.Sight()))
		}
	}
	return out
}

// StatusOf maps an error of SubmitWith to the status that api.proto documents.
func StatusOf(err error) error { return rpcError(err) }

// rpcError maps an error to the status that api.proto documents.
func rpcError(err error) error {
	var problems job.Errors
	if errors.As(err, &problems) {
		return rpcerr.Invalid(problems.Proto()...)
	}
	return state.RPCErrors.Err(err)
}

// invalid returns INVALID_ARGUMENT for one field of the request.
func invalid(field, message string) error {
	return rpcerr.Invalid(&nusav1.Problem{Field: field, Message: message})
}

// unknownRegion returns INVALID_ARGUMENT for a field that names an unknown region. The text lists
// the existing regions. The lock is held.
func unknownRegion(st *state.State, field, name string) error {
	what := "region "
	if field == "region" {
		what = "" // the field's name already says "region"
	}
	return invalid(field, fmt.Sprintf("%s%q does not exist; there are %s", what, name, topo.ListNames(st.RegionNames())))
}

// regionNotFound returns NOT_FOUND for a region. The text lists the existing regions. The lock is
// held.
func regionNotFound(st *state.State, name string) error {
	return status.Errorf(codes.NotFound, "region %q does not exist; there are %s", name, topo.ListNames(st.RegionNames()))
}

func jobNotFound(k state.JobKey) error {
	return rpcerr.NotFound(rpcerr.KindJob, k.String(), fmt.Sprintf("job %s does not exist", k))
}
