package repair

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/drift"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// region compares the slots that a region should have with those in its log. A difference counts if
// two looks find it.
func (r *Repairer) region(ctx context.Context, name string) *nusav1.ReconcileResult {
	out := r.result(name)
	first, session, err := r.look(ctx, name, out)
	if err == nil && len(first) > 0 {
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(lookAgain):
			var second []drift.Difference
			var later uint64
			second, later, err = r.look(ctx, name, nil)
			if err == nil && later == session {
				r.repair(name, drift.Lasting(first, second), out)
			}
		}
	}
	switch {
	case status.Code(err) == codes.Unimplemented:
		out.out.Skipped = "the region runs an earlier version, which does not say which slots it has"
	case err != nil:
		out.out.Skipped = status.Convert(err).Message()
	}
	return out.end()
}

// slotBytes is about what a slot takes in memory, without its key. spareSlots is how many more slots a
// region may say that it has than it should have, and keyBytes the greatest usual length of a key.
const slotBytes, spareSlots, keyBytes = 64, 50_000, 256

// room returns how many bytes the slots may take that a region says it has. A hostile region could say
// that it has more than fit into memory.
func (r *Repairer) room(name string) int {
	r.State.Lock()
	defer r.State.Unlock()
	slots := spareSlots
	if x := r.State.Regions[name]; x != nil {
		slots += x.Orders.Len()
	}
	return slots * (slotBytes + keyBytes)
}

// look returns the differences between the slots that a region should have and those in its log, and
// the number of the region's session.
func (r *Repairer) look(ctx context.Context, name string, count *result) ([]drift.Difference, uint64, error) {
	conn, err := r.Dial(name)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	stream, err := nusav1.NewRepairsClient(conn).Slots(ctx, &nusav1.HeldSlotsRequest{})
	if err != nil {
		return nil, 0, err
	}
	have, room := map[string]uint64{}, r.room(name)
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, 0, err
		}
		for _, s := range part.GetSlots() {
			room -= slotBytes + len(s.GetKey())
			if room < 0 {
				return nil, 0, status.Errorf(codes.ResourceExhausted, "region %s says that it has many more slots than it should have", name)
			}
			have[s.GetKey()] = uint64(s.GetRevision())
		}
	}
	r.State.Lock()
	defer r.State.Unlock()
	x := r.State.Regions[name]
	switch {
	case x == nil || x.Session == nil:
		return nil, 0, status.Errorf(codes.Unavailable, "region %s is not connected any more", name)
	case x.Life.CommitBlocked > 0:
		return nil, 0, status.Errorf(codes.Unavailable, "region %s cannot commit to its log", name)
	case r.State.Leadership.GetConflict() != nil || !r.State.Serving():
		return nil, 0, status.Error(codes.Unavailable, "this server sends no orders now")
	}
	want := map[string]uint64{}
	for _, key := range x.Orders.Keys() {
		o, _ := x.Orders.Get(key)
		if state.SlotOrder(r.State, name, key, o, 0) != nil {
			want[key] = uint64(o.Revision)
		}
	}
	if count != nil {
		count.out.Compared += int64(len(want))
	}
	return drift.Compare(want, have), x.Session.Number, nil
}

// repair sends orders again for what differs.
func (r *Repairer) repair(name string, differ []drift.Difference, to *result) {
	var orders, removals []string
	for _, d := range differ {
		switch d.Kind {
		case drift.Stray:
			removals = append(removals, d.Key)
			to.repaired("region_stray", d.Key, d.String(), "the removal was sent again")
		case drift.Newer: // the store may be an old copy, which sessions find out
			r.Log.Error("a region has a later order of a slot than the store", "region", name, "slot", d.Key, "why", d.String())
		default:
			orders = append(orders, d.Key)
			to.repaired("region_"+string(d.Kind), d.Key, d.String(), "the order was sent again")
		}
	}
	if len(orders)+len(removals) == 0 {
		return
	}
	r.State.Lock()
	defer r.State.Unlock()
	if x := r.State.Regions[name]; x != nil {
		state.RepeatOrders(x, orders, removals)
	}
}

// inside lets a region compare what it has.
func (r *Repairer) inside(ctx context.Context, name string) []*nusav1.ReconcileResult {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	conn, err := r.Dial(name)
	if err == nil {
		var resp *nusav1.ReconcileResponse
		resp, err = nusav1.NewRepairsClient(conn).Run(ctx, &nusav1.ReconcileRequest{Region: name})
		if err == nil {
			return resp.GetResults()
		}
	}
	return []*nusav1.ReconcileResult{{Tier: "region", Region: name, Skipped: fmt.Sprintf("not compared: %s", status.Convert(err).Message())}}
}
