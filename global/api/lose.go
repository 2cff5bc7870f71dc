package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// The bounds of the stored texts of an operator's statement, in bytes.
const (
	maxWhy = 256
	maxBy  = 128
)

// lostByOperator is the format of the event about an operator's statement.
const lostByOperator = "by %s, who states that nothing runs there any more: %s"

// Lose implements nusav1.RegionsServer: an operator states that nothing runs in a region any more.
func (g *regionsAPI) Lose(ctx context.Context, req *nusav1.LoseRegionRequest) (*nusav1.Region, error) {
	term, err := g.s.term()
	if err != nil {
		return nil, err
	}
	name := req.GetName()
	loss, err := lossOf(req)
	if err != nil {
		return nil, err
	}
	switch r, err := term.region(name); {
	case (status.Code(err) == codes.NotFound || err == nil && r.GetClusterId() == "") && unknownToCopy(term, name):
		return loseUnknown(ctx, term, name, loss)
	case err != nil:
		return nil, err
	}
	_, err = term.Commit.Do(ctx, func(t *state.Tx) error {
		rec, _ := t.Region(name)
		r := t.State.Regions[name]
		switch {
		case rec == nil || r == nil:
			return status.Errorf(codes.NotFound, "region %q does not exist", name)
		case rec.GetClusterId() == "":
			return status.Errorf(codes.FailedPrecondition, "region %s never connected, so nothing runs there; `nusa region remove %s` removes it", name, name)
		case r.Session != nil && cutOff(t.State, name):
			return stillOpen(t.State, r)
		case r.Session != nil:
			return status.Errorf(codes.FailedPrecondition, "region %s is connected, so its work may run: `nusa region drain %s` moves the work away in order; "+
				"if the region is really gone, stop its servers first", name, name)
		}
		if wait := region.Gone(t.State.SessionConfig(), r.Life, t.State.Clock()); wait > 0 {
			return mayReconnect(t.State.Sight(), name, wait)
		}
		t.Event("region.lost", name, lostByOperator, loss.By, loss.Why)
		return t.DeclareLost(name, loss, time.Now())
	})
	if err != nil {
		return nil, rpcError(err)
	}
	term.Log.Warn("region declared lost by an operator", "region", name, "by", loss.By, "why", loss.Why)
	return term.region(name)
}

// unknownToCopy reports whether a region must confirm what it runs although the store has no
// cluster of it. The store was then perhaps restored from a copy that is older than the region's
// servers.
func unknownToCopy(t *Term, name string) bool {
	t.State.Lock()
	defer t.State.Unlock()
	return slices.Contains(t.State.Unconfirmed(), name)
}

// loseUnknown states that nothing runs in a region whose cluster the store does not know.
func loseUnknown(ctx context.Context, t *Term, name string, loss state.Loss) (*nusav1.Region, error) {
	_, err := t.Commit.Do(ctx, func(tx *state.Tx) error {
		if err := tx.Audit(audit.Entry{Verb: "lose", Kind: "region", Name: name, Region: name, Reason: "by " + loss.By + ": " + loss.Why}); err != nil {
			return err
		}
		tx.Event("region.lost", name, lostByOperator, loss.By, loss.Why)
		return tx.Confirmed(name)
	})
	if err != nil {
		return nil, rpcError(err)
	}
	return &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}, State: nusav1.RegionState_REGION_STATE_LOST}, nil
}

// cutOff reports whether a region counts as cut off. The lock is held.
func cutOff(st *state.State, name string) bool {
	_, cut := st.Sight().CutOff(name)
	return cut
}

// stillOpen returns the error for a statement about a region that is silent and whose session has not
// ended yet. The lock is held.
func stillOpen(st *state.State, r *state.Region) error {
	now := st.Clock()
	wait := region.EndsIn(st.SessionConfig(), r.Life, now).Truncate(time.Second) + 2*time.Second // the end is checked each second
	return rpcerr.Error{
		Code: codes.FailedPrecondition, RetryAfter: wait,
		Message: fmt.Sprintf("region %s is disconnected, silent for %s; its session is still open: nothing has changed; run the command again in %s",
			r.Name, jobstatus.Span(r.Life.SilentFor(now)), wait),
	}.Err()
}

// mayReconnect returns the error for a statement about a region that may reconnect very soon. The
// lock is held.
func mayReconnect(see state.Sight, name string, wait time.Duration) error {
	wait = wait.Truncate(time.Second) + time.Second
	return rpcerr.Error{
		Code: codes.FailedPrecondition, RetryAfter: wait,
		Message: fmt.Sprintf("region %s may reconnect and run its work (%s): nothing has changed; run the command again in %s if `nusa region list` shows then that the region is not connected",
			name, see.Absence(name), wait),
	}.Err()
}

// lossOf checks a request to declare a region lost, and returns the loss.
func lossOf(req *nusav1.LoseRegionRequest) (state.Loss, error) {
	loss := state.Loss{Why: strings.TrimSpace(req.GetWhy()), By: strings.TrimSpace(req.GetBy()), NothingRuns: true}
	switch {
	case req.GetConfirm() != req.GetName():
		return loss, invalid("confirm", fmt.Sprintf("must be the name of the region, %s: everything that it ran may start elsewhere at once", req.GetName()))
	case len(loss.Why) > maxWhy:
		return loss, invalid("why", fmt.Sprintf("has %d bytes, at most %d are taken", len(loss.Why), maxWhy))
	case len(loss.By) > maxBy:
		return loss, invalid("by", fmt.Sprintf("has %d bytes, at most %d are taken", len(loss.By), maxBy))
	case strings.ContainsAny(loss.Why+loss.By, "\r\n"):
		return loss, invalid("why", "must be one line")
	}
	if loss.By == "" {
		loss.By = "an operator"
	}
	return loss, nil
}
