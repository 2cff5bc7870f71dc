package spares

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/spares/step"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// stepPause is the time between two looks at the spares, and forgetEvery the time between two removals
	// of old ones.
	stepPause, forgetEvery = 250 * time.Millisecond, 10 * time.Second
	// calls bounds the requests in progress, and writes the reservations that are made or released at the
	// same time.
	calls, writes = 16, 16
	// writeLimit is the time for one reservation.
	writeLimit = 10 * time.Second
)

// Run acts on the spares until ctx ends. When it returns, no request is in progress.
func (b *Book) Run(ctx context.Context) error {
	if err := b.load(ctx); err != nil {
		return err
	}
	close(b.ready)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(calls + 1)
	g.Go(func() error { return b.loop(ctx, g) })
	return g.Wait()
}

func (b *Book) loop(ctx context.Context, requests *errgroup.Group) error {
	var forgot time.Time
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		wake := b.wake.C()
		b.st.Lock()
		idle := len(b.open) == 0
		ids := make([]string, 0, len(b.open))
		for id := range b.open {
			ids = append(ids, id)
		}
		b.st.Unlock()
		slices.Sort(ids)
		for _, id := range ids {
			b.act(ctx, requests, id)
		}
		now := time.Now()
		if now.Sub(forgot) >= forgetEvery {
			forgot = now
			if err := b.forget(ctx, now); err != nil && ctx.Err() == nil {
				b.cfg.Log.Warn("old spares are still stored", "error", err)
			}
		}
		pause := stepPause
		if idle {
			pause = forgetEvery
		}
		tick.Reset(pause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-wake:
		case <-b.nudge:
		}
	}
}

// act makes one step of a spare, and carries out what follows.
func (b *Book) act(ctx context.Context, requests *errgroup.Group, id string) {
	b.st.Lock()
	e := b.open[id]
	if e == nil {
		b.st.Unlock()
		return
	}
	rec, result := e.rec, e.result
	b.st.Unlock()
	in, ok := b.input(e, rec)
	if !ok {
		return
	}
	in.Result = result
	before := decode(rec)
	next, effects := step.Step(b.configOf(rec), before, in)
	if !reflect.DeepEqual(before, next) {
		effects, ok = b.store(ctx, id, rec, in)
		if !ok {
			return
		}
	}
	if result != nil {
		b.st.Lock()
		e.result = nil
		b.st.Unlock()
	}
	b.carryOut(ctx, requests, e, effects)
}

// input returns what is known of the reservations of a spare. ok is false if that is not known yet.
func (b *Book) input(e *entry, rec *nusav1.SpareRecord) (in step.Input, ok bool) {
	ids := reservationIDs(rec)
	all, ok := b.cfg.Reservations.Find(ids)
	if !ok {
		return in, false
	}
	b.st.Lock()
	defer b.st.Unlock()
	in = step.Input{Now: time.Now()}
	for i, r := range all {
		in.Reservations = append(in.Reservations, known(r, e.refused[ids[i]]))
	}
	return in, true
}

// store makes a step in a transaction. It does nothing if the record has changed meanwhile, or if there is
// a reservation that the step takes for absent: such a step could end the spare and leave the room held.
func (b *Book) store(ctx context.Context, id string, was *nusav1.SpareRecord, in step.Input) (effects []step.Effect, ok bool) {
	_, err := b.cfg.Term.Commit.Do(ctx, func(t *state.Tx) error {
		effects = nil
		rec := b.present(t, id)
		if rec != was {
			return state.ErrConflict
		}
		for i, reservation := range reservationIDs(rec) {
			if in.Reservations[i].Known == step.Absent && reservation != "" && b.cfg.Reservations.Exists(t, reservation) {
				return state.ErrConflict
			}
		}
		var err error
		effects, err = b.put(t, rec, in)
		return err
	})
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, state.ErrConflict) {
			b.cfg.Log.Warn("a step of a spare is not stored yet", "spare", id, "error", err)
		}
		return nil, false
	}
	return effects, true
}

// put makes a step of a record in a transaction, with its events.
func (b *Book) put(t *state.Tx, rec *nusav1.SpareRecord, in step.Input) ([]step.Effect, error) {
	next, effects := step.Step(b.configOf(rec), decode(rec), in)
	s := rec.GetSpare()
	for _, e := range effects {
		if tell, is := e.(step.Tell); is {
			t.Event(tell.Type, s.GetRequest().GetNamespace()+"/"+s.GetId(), "%s", tell.Text)
		}
	}
	return effects, state.PutOther(t, recordKey(s.GetId()), encode(rec, next, in.Now))
}

// configOf returns what does not change about a spare. A provisioner may be changed while a spare uses it.
func (b *Book) configOf(rec *nusav1.SpareRecord) step.Config {
	s := rec.GetSpare()
	c := step.Config{
		Provisioner: s.GetRequest().GetProvisioner() != "", Callback: s.GetRequest().GetCallbackUrl() != "",
		Deadline: s.GetDeadline().AsTime(), Hold: s.GetRequest().GetHold().AsDuration(), JoinTimeout: defaultJoin,
	}
	if d := rec.GetJoinTimeout().AsDuration(); d > 0 {
		c.JoinTimeout = d
	}
	return c
}

// carryOut carries out the effects of a step. Reservations are made and released before it returns;
// requests go on.
func (b *Book) carryOut(ctx context.Context, requests *errgroup.Group, e *entry, effects []step.Effect) {
	b.st.Lock()
	rec := e.rec
	b.st.Unlock()
	var g errgroup.Group
	g.SetLimit(writes)
	for _, effect := range effects {
		switch effect := effect.(type) {
		case step.Reserve:
			g.Go(func() error { b.reserve(ctx, e, rec, effect); return nil })
		case step.Free:
			g.Go(func() error { b.free(ctx, rec, effect); return nil })
		case step.Ask:
			b.request(ctx, requests, e, effect.Key, func(ctx context.Context) step.Result {
				return b.ask(ctx, rec, effect)
			})
		case step.Notify:
			b.request(ctx, requests, e, effect.Key, func(ctx context.Context) step.Result {
				return b.notify(ctx, rec, effect)
			})
		}
	}
	_ = g.Wait() // no function returns an error
}

// request makes a request, unless one of the spare is in progress. The next step gets its result.
func (b *Book) request(ctx context.Context, requests *errgroup.Group, e *entry, key string, do func(context.Context) step.Result) {
	b.st.Lock()
	defer b.st.Unlock()
	if e.calling || e.result != nil {
		return
	}
	e.calling = requests.TryGo(func() error {
		result := do(ctx)
		result.Key = key
		b.st.Lock()
		defer b.st.Unlock()
		e.calling, e.result = false, &result
		select {
		case b.nudge <- struct{}{}:
		default:
		}
		return nil
	})
}

// reserve makes the reservation of a place, if the spare still wants it when the transaction runs. Else a
// reservation that is committed after the spare has ended would be held for ever.
func (b *Book) reserve(ctx context.Context, e *entry, rec *nusav1.SpareRecord, r step.Reserve) {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	req := reservationOf(rec.GetSpare(), r)
	_, err := b.cfg.Reservations.OpenIf(ctx, req, func(t *state.Tx) error {
		now := b.present(t, rec.GetSpare().GetId())
		if now == nil || phaseOf(now.GetSpare().GetState()) >= step.Releasing || int(now.GetRounds()[r.Place]) != r.Round {
			return status.Error(codes.Aborted, "the spare does not want the reservation any more")
		}
		return nil
	})
	switch status.Code(err) {
	case codes.OK:
	case codes.InvalidArgument, codes.PermissionDenied, codes.AlreadyExists, codes.FailedPrecondition:
		b.st.Lock()
		defer b.st.Unlock()
		e.refused[reservationIDs(rec)[r.Place]] = status.Convert(err).Message()
	default:
		if ctx.Err() == nil {
			b.cfg.Log.Debug("a reservation of a spare is not made yet", "spare", rec.GetSpare().GetId(), "error", err)
		}
	}
}

// reservationOf returns the request for the reservation of a place. Its key makes a repeated request
// harmless, so it depends on nothing that changes.
func reservationOf(s *nusav1.Spare, r step.Reserve) *nusav1.CreateReservationRequest {
	req := s.GetRequest()
	out := &nusav1.CreateReservationRequest{
		Namespace: req.GetNamespace(), Pool: req.GetPool(), CpuMilli: req.GetCpuMilli(), MemoryBytes: req.GetMemoryBytes(), DiskBytes: req.GetDiskBytes(),
		Constraints: req.GetConstraints(), Labels: map[string]string{"nusa-spare": s.GetId()}, IdempotencyKey: keyOf(s.GetId(), r.Place, r.Round),
		Wait: durationpb.New(0),
	}
	if whole(req) {
		out.CpuMilli, out.MemoryBytes, out.Dedicated = 1, 1<<20, true
	}
	if r.Wait > 0 {
		out.Wait = durationpb.New(maxDeadline) // the spare releases it at its deadline
	}
	for k, v := range req.GetLabels() {
		out.Labels[k] = v
	}
	for _, name := range req.GetRegions() {
		if out.Regions == nil {
			out.Regions = &nusav1.RegionsSpec{}
		}
		out.Regions.Allow = append(out.Regions.Allow, &nusav1.RegionSelector{Name: name})
	}
	return out
}

// free releases the reservation of a place.
func (b *Book) free(ctx context.Context, rec *nusav1.SpareRecord, f step.Free) {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	all, ok := b.cfg.Reservations.Find(reservationIDs(rec)[f.Place : f.Place+1])
	if !ok || all[0] == nil {
		return
	}
	if _, err := b.cfg.Reservations.End(ctx, all[0], "the spare has ended"); err != nil && ctx.Err() == nil {
		b.cfg.Log.Debug("a reservation of a spare is not released yet", "spare", rec.GetSpare().GetId(), "error", err)
	}
}
