package api

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/placer"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// maxReturns bounds the moves of a FailbackResponse.
const maxReturns = 10_000

// changeRegion changes a region's record, and adds an event. change returns false if there is nothing to
// change.
func (t *Term) changeRegion(ctx context.Context, name, verb, detail string, change func(*nusav1.Region) (bool, error), event, text string) error {
	_, err := t.Commit.Do(ctx, func(tx *state.Tx) error {
		old, _ := tx.Region(name)
		if old == nil {
			return regionNotFound(tx.State, name)
		}
		next := proto.CloneOf(old)
		again, err := change(next)
		if err != nil || !again {
			return err
		}
		if err := tx.Audit(audit.Entry{Verb: verb, Kind: "region", Name: name, Region: name, Reason: detail}); err != nil {
			return err
		}
		tx.Event(event, name, "%s", text)
		return tx.PutRegion(name, next)
	})
	return rpcError(err)
}

// Drain implements nusav1.RegionsServer. The placer moves the work.
func (g *regionsAPI) Drain(ctx context.Context, req *nusav1.DrainRegionRequest) (*nusav1.Region, error) {
	term, err := g.s.term()
	if err != nil {
		return nil, err
	}
	name := req.GetName()
	err = term.changeRegion(ctx, name, "drain", onOff(req.GetDrain()), func(r *nusav1.Region) (bool, error) {
		if r.GetDraining() == req.GetDrain() {
			return false, nil
		}
		r.Draining = req.GetDrain()
		r.Returning = r.GetReturning() && !req.GetDrain()
		return true, nil
	}, "region."+eventKind(req.GetDrain(), "draining", "undrained"), "by an operator")
	if err != nil {
		return nil, err
	}
	return term.region(name)
}

// Failback implements nusav1.RegionsServer. It returns the plan, and starts the failback if the
// request says so.
func (g *regionsAPI) Failback(ctx context.Context, req *nusav1.FailbackRequest) (*nusav1.FailbackResponse, error) {
	term, err := g.s.term()
	if err != nil {
		return nil, err
	}
	name := req.GetName()
	at, err := term.region(name)
	if err != nil {
		return nil, err
	}
	if at.GetState() != nusav1.RegionState_REGION_STATE_CONNECTED {
		return nil, status.Errorf(codes.FailedPrecondition, "region %s is not connected: nothing can return to it", name)
	}
	if at.GetDraining() {
		return nil, status.Errorf(codes.FailedPrecondition, "region %s is draining: end the drain first (nusa region drain %s --off)", name, name)
	}
	all := placer.Returns(term.State, name)
	some := false
	out := &nusav1.FailbackResponse{More: int32(max(0, len(all)-maxReturns))}
	for i, r := range all {
		some = some || r.Returns
		if i < maxReturns {
			out.Moves = append(out.Moves, moveToProto(r))
		}
	}
	if !req.GetApply() || !some {
		return out, nil
	}
	err = term.changeRegion(ctx, name, "failback", "", func(r *nusav1.Region) (bool, error) {
		if r.GetReturning() {
			return false, nil
		}
		r.Returning = true
		return true, nil
	}, "region.failback", "begun by an operator")
	if err != nil {
		return nil, err
	}
	return out, nil
}

func moveToProto(r place.Return) *nusav1.FailbackMove {
	return &nusav1.FailbackMove{
		Namespace: r.Namespace, Job: r.Job, Group: r.Group, From: int32(r.From), To: int32(r.To),
		Owner: r.Owner, Returns: r.Returns, Message: r.Why,
	}
}
