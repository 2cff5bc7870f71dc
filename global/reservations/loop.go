package reservations

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// stepPause bounds how often the loop looks at the reservations that are processing, and heldEvery
	// how often at the others. forgetEvery is how often it forgets old records.
	stepPause, heldEvery, forgetEvery = 25 * time.Millisecond, time.Second, 5 * time.Second
	// locateMost bounds the jobs of one call to a region, and locateLimit its time. locateCalls bounds the
	// calls at the same time.
	locateMost, locateLimit, locateCalls = 1000, 5 * time.Second, 32
	// The lock is held while the loop looks at the reservations. So it looks for at most a lookShare of
	// the time, also if there are many.
	lookShare = 10
	// together is how many reservations one transaction changes.
	together = 30
	// After a call that failed, a region is not asked for retryFirst, and then for twice as long after each
	// further one, at most for retryMost.
	retryFirst, retryMost = 100 * time.Millisecond, 5 * time.Second
)

// retry says how long a region that did not answer is not asked.
type retry struct {
	pause time.Duration
	until time.Duration // by the clock of the state
}

// again returns what follows after a further call that failed.
func (r retry) again(now time.Duration) retry {
	pause := min(max(2*r.pause, retryFirst), retryMost)
	return retry{pause, now + pause}
}

// finding is a reservation with its verdict.
type finding struct {
	id string
	verdict
	reason nusav1.Reason
}

// located is a reservation with its node.
type located struct {
	id   string
	node *nusav1.ReservedNode
}

// Run carries out what follows for the reservations, until ctx ends.
func (b *Book) Run(ctx context.Context) error {
	if err := b.load(ctx); err != nil {
		return err
	}
	close(b.ready)
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(locateCalls + 1)
	calls.Go(func() error { return b.loop(ctx, calls) })
	return calls.Wait()
}

func (b *Book) loop(ctx context.Context, calls *errgroup.Group) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	var heldAt, forgotAt time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-pause.C:
			wake := b.wake.C()
			withHeld := now.Sub(heldAt) >= heldEvery
			if withHeld {
				heldAt = now
			}
			some := b.step(ctx, calls, withHeld)
			if now.Sub(forgotAt) >= forgetEvery {
				forgotAt = now
				b.forget(ctx, now)
			}
			if !some { // nothing is processing: the next reservation wakes the loop
				select {
				case <-wake:
				case <-time.After(heldEvery):
				case <-ctx.Done():
				}
			}
			pause.Reset(max(stepPause, lookShare*b.looked))
		}
	}
}

// step looks at the reservations once. It reports whether some are processing.
func (b *Book) step(ctx context.Context, calls *errgroup.Group, withHeld bool) (some bool) {
	ends, ask := b.look(withHeld)
	for chunk := range slices.Chunk(ends, together) {
		_, err := b.cfg.Term.Commit.Do(ctx, func(t *state.Tx) error {
			for _, f := range chunk {
				if f.state == nusav1.ReservationState_RESERVATION_STATE_FAILED && b.runs(f.id) {
					continue // a region has reported the instance since
				}
				if err := b.end(t, f.id, f.state, f.reason, f.message); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil && ctx.Err() == nil && !errors.Is(err, state.ErrConflict) {
			b.cfg.Term.Log.Warn("reservations that have ended are not stored yet", "count", len(chunk), "error", err)
		}
	}
	for name, ids := range ask {
		for chunk := range slices.Chunk(ids, locateMost) {
			if !calls.TryGo(func() error { b.locate(ctx, name, chunk); return nil }) {
				b.mark(chunk, false) // the next step asks again
			}
		}
	}
	b.st.Lock()
	defer b.st.Unlock()
	return len(b.open) > 0
}

// look decides about the reservations whose jobs have changed, and those whose wait is over. ask has, by
// region, the reservations whose node is unknown; they are marked as being located.
func (b *Book) look(withHeld bool) (ends []finding, ask map[string][]string) {
	b.st.Lock()
	defer b.st.Unlock()
	began := time.Now()
	ask = map[string][]string{}
	now := b.st.Clock()
	consider := func(id string, e *entry, due bool) {
		if !b.unchanged(e) || due && e.wants == "" {
			if f := b.visit(e, now); f != nil {
				f.id = id
				ends = append(ends, *f)
			}
		}
		if e.wants != "" && !e.locating && now >= b.retries[e.wants].until {
			e.locating = true
			ask[e.wants] = append(ask[e.wants], id)
		}
	}
	for id, e := range b.open {
		consider(id, e, now-e.since >= e.rec.GetRequest().GetWait().AsDuration())
	}
	if withHeld {
		for id, e := range b.held {
			consider(id, e, false)
		}
	}
	b.looked = time.Since(began)
	return ends, ask
}

// visit decides about a reservation. It returns how the reservation ends, or nil. The lock is held.
func (b *Book) visit(e *entry, now time.Duration) *finding {
	f, at := b.facts(e, now)
	v := decide(f)
	e.stamp, e.wants = at, ""
	switch {
	case v.locate:
		e.wants = f.region
	case v.state != 0:
		found := &finding{verdict: v}
		if v.state == nusav1.ReservationState_RESERVATION_STATE_FAILED {
			// Only now, because it is costly: why there is no room.
			found.reason, f.why = b.obstacle(e)
			found.message = decide(f).message
		}
		return found
	}
	return nil
}

// unchanged reports whether the job of a reservation is as it was when the loop last looked. The lock is
// held.
func (b *Book) unchanged(e *entry) bool {
	j := b.st.Jobs[keyOf(e.rec)]
	return j != nil && j.Stamp == e.stamp
}

// facts returns what the state knows of a reservation at a time, and the stamp of the job. The lock is
// held.
func (b *Book) facts(e *entry, now time.Duration) (f facts, stamp uint64) {
	k := keyOf(e.rec)
	f = facts{state: e.rec.GetState(), wait: e.rec.GetRequest().GetWait().AsDuration(), waited: now - e.since}
	j := b.st.Jobs[k]
	if j == nil || j.Record == nil {
		f.gone = !state.MayBeInHistory(b.st, k)
		if line := state.Line(b.st, k.String()); line != nil {
			f.ended, f.stopped = line.GetStatus().GetState(), line.GetStopped()
		}
		return f, 0
	}
	f.stopped, f.changed = j.Record.Stopped(), j.Stamp != e.stamp
	f.ended = j.Result.GetStatus().GetState()
	owned := false
	for s := range j.Slots.All() {
		if s.Vacant || s.Desired != region.DesiredRun {
			continue
		}
		owned = true
		if j.Summaries.Get(s.Region).GetGroups()[group].GetRunning() > 0 {
			f.region = s.Region
		}
	}
	f.refused = !owned && j.Decisions.Of(group).Unplaced > 0
	return f, j.Stamp
}

// runs reports whether a region says that the instance runs. The lock is held.
func (b *Book) runs(id string) bool {
	e := b.byID[id]
	if e == nil {
		return false
	}
	f, _ := b.facts(e, b.st.Clock())
	return f.region != "" && !f.stopped
}

// obstacle returns why a job has no room, for people. The lock is held.
func (b *Book) obstacle(e *entry) (nusav1.Reason, string) {
	j := b.st.Jobs[keyOf(e.rec)]
	if j == nil || j.Record == nil {
		return 0, ""
	}
	status := j.Status(b.st.Sight())
	if first := status.GetGroups()[group].GetPending(); len(first) > 0 {
		return first[0].GetReason(), reason.WithMessage(first[0].GetReason(), first[0].GetMessage())
	}
	return 0, status.GetMessage()
}

func (b *Book) mark(ids []string, locating bool) {
	b.st.Lock()
	defer b.st.Unlock()
	for _, id := range ids {
		if e := b.byID[id]; e != nil {
			e.locating = locating
		}
	}
}

// locate asks a region for the nodes of reservations, and stores them.
func (b *Book) locate(ctx context.Context, name string, ids []string) {
	defer b.mark(ids, false)
	req := &nusav1.LocateReservationsRequest{}
	stamps := make([]uint64, len(ids))
	b.st.Lock()
	for i, id := range ids {
		ref := &nusav1.JobRef{}
		if e := b.byID[id]; e != nil {
			k := keyOf(e.rec)
			ref.Namespace, ref.Name = k.Namespace, k.Name
			if j := b.st.Jobs[k]; j != nil {
				stamps[i] = j.Stamp
			}
		}
		req.Jobs = append(req.Jobs, ref)
	}
	b.st.Unlock()
	call, cancel := context.WithTimeout(ctx, locateLimit)
	defer cancel()
	conn, err := b.cfg.Term.Dial(name)
	var resp *nusav1.LocateReservationsResponse
	if err == nil {
		resp, err = nusav1.NewReservationsClient(conn).Locate(call, req)
	}
	if err != nil || len(resp.GetNodes()) != len(ids) {
		b.cfg.Term.Log.Debug("a region did not say where reservations are", "region", name, "count", len(ids), "error", err)
		b.st.Lock()
		defer b.st.Unlock()
		b.retries[name] = b.retries[name].again(b.st.Clock())
		return
	}
	b.st.Lock()
	delete(b.retries, name)
	b.st.Unlock()
	found := make([]located, 0, len(ids))
	for i, n := range resp.GetNodes() {
		if n.GetId() != "" {
			n.Region = name
			found = append(found, located{ids[i], n})
		}
	}
	for chunk := range slices.Chunk(found, together) {
		_, err := b.cfg.Term.Commit.Do(ctx, func(t *state.Tx) error {
			for _, l := range chunk {
				if err := b.edit(t, l.id, func(r *nusav1.Reservation) bool { return noteNode(t, r, l.node) }); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return // the next step asks again
		}
	}
	b.st.Lock()
	defer b.st.Unlock()
	for i, id := range ids {
		if e := b.byID[id]; e != nil && resp.GetNodes()[i].GetId() != "" {
			e.stamp, e.wants = stamps[i], ""
		}
	}
}

// noteNode notes the node of a reservation. It returns false if nothing changes.
func noteNode(t *state.Tx, r *nusav1.Reservation, node *nusav1.ReservedNode) bool {
	was := r.GetNode()
	switch r.GetState() {
	case nusav1.ReservationState_RESERVATION_STATE_PROCESSING:
		r.State, r.Node, r.Completed = nusav1.ReservationState_RESERVATION_STATE_COMPLETED, node, timestamppb.Now()
		return true
	case nusav1.ReservationState_RESERVATION_STATE_COMPLETED:
		if was.GetId() == node.GetId() && was.GetRegion() == node.GetRegion() {
			return false
		}
		r.Node, r.MovedFrom, r.Moves = node, was, r.GetMoves()+1
		claimed := ""
		if c := r.GetClaim(); c != nil {
			claimed = ", with the claim of " + c.GetBy()
		}
		t.Event("reservation.moved", r.GetRequest().GetNamespace()+"/"+r.GetId(), "from %s in %s to %s in %s%s", was.GetName(), was.GetRegion(), node.GetName(), node.GetRegion(), claimed)
		return true
	}
	return false
}

// forget removes the records of reservations that ended long ago, and the oldest of too many.
func (b *Book) forget(ctx context.Context, now time.Time) {
	for {
		b.st.Lock()
		var ids []string
		var taken []ended
		for len(b.ended) > 0 && len(ids) < together {
			first := b.ended[0]
			if e := b.byID[first.id]; e != nil && e.rec.GetEnded() != nil {
				if len(b.ended) <= endedMost && b.bytes <= b.most && now.Sub(first.at) < b.cfg.Retention {
					break
				}
				ids, taken = append(ids, first.id), append(taken, first)
			}
			b.ended, b.bytes = b.ended[1:], b.bytes-first.bytes
		}
		b.st.Unlock()
		if len(ids) == 0 {
			return
		}
		_, err := b.cfg.Term.Commit.Do(ctx, func(t *state.Tx) error {
			for _, id := range ids {
				if err := errors.Join(state.DeleteOther(t, recordKey(id)), state.DeleteOther(t, claimKey(id))); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.st.Lock()
			b.ended = append(taken, b.ended...) // they are still stored
			for _, again := range taken {
				b.bytes += again.bytes
			}
			b.st.Unlock()
			return
		}
	}
}
