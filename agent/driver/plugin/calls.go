package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// goneSoon bounds the wait for the end of the process after its connection broke. The
// end says why the call failed.
const goneSoon = time.Second

// verb is a kind of call to the plugin.
type verb struct {
	name  string
	limit time.Duration
	// patient says that a call waits until the plugin runs, and that it is repeated if the
	// plugin ends during the call.
	patient bool
}

// call calls the plugin within the verb's limit.
func call[Req, Resp any](ctx context.Context, d *Driver, v verb, req Req, f func(nusav1.DriverClient, context.Context, Req, ...grpc.CallOption) (Resp, error)) (Resp, error) {
	var none Resp
	limited, cancel := context.WithTimeout(ctx, v.limit)
	defer cancel()
	for crashes := 1; ; crashes++ {
		l, err := d.current(limited, v.patient)
		if err != nil {
			if ctx.Err() != nil {
				return none, &Error{Plugin: d.cfg.Name, Verb: v.name, Kind: ctx.Err(), Text: err.Error()}
			}
			return none, &Error{Plugin: d.cfg.Name, Verb: v.name, Kind: driver.ErrUnavailable, Text: err.Error()}
		}
		resp, err := f(l.client, limited, req)
		if err == nil {
			return resp, nil
		}
		e := d.explain(ctx, limited, l, v, err)
		if !v.patient || e.Kind != driver.ErrUnavailable || limited.Err() != nil || crashes >= maxCrashes {
			return none, e
		}
	}
}

// explain converts the error of a failed call into an Error. limited is ctx with the verb's
// own limit.
func (d *Driver) explain(ctx, limited context.Context, l *life, v verb, err error) *Error {
	out := &Error{Plugin: d.cfg.Name, Verb: v.name}
	switch code := status.Code(err); {
	case ctx.Err() != nil:
		out.Kind, out.Text = ctx.Err(), "the caller gave up"
	case limited.Err() != nil, code == codes.DeadlineExceeded && !earlier(ctx, limited):
		out.Kind, out.Text, out.silent = driver.ErrUnavailable, fmt.Sprintf("no response within %s", v.limit), true
	case code == codes.Unavailable, code == codes.Canceled: // Canceled also means that the connection is being closed
		t := time.NewTimer(goneSoon)
		defer t.Stop()
		out.Kind = driver.ErrUnavailable
		select {
		case <-l.gone:
			out.Text, out.LastLine = l.end, l.lines.end()
		case <-t.C:
			out.Text = clip(status.Convert(err).Message(), maxMessage)
		case <-ctx.Done():
			out.Kind = ctx.Err()
		}
	default:
		return readError(d.cfg.Name, v.name, err)
	}
	return out
}

// earlier reports whether ctx ends before limited, which is ctx with the verb's own limit.
func earlier(ctx, limited context.Context) bool {
	a, ok := ctx.Deadline()
	b, _ := limited.Deadline()
	return ok && !a.After(b)
}

// breach returns the error for a response that breaks the contract.
func (d *Driver) breach(verb string, err error) error {
	return &Error{Plugin: d.cfg.Name, Verb: verb, Kind: driver.ErrContract, Text: err.Error()}
}

// Start implements driver.Driver.
func (d *Driver) Start(ctx context.Context, t driver.Task) error {
	err := d.latest().Config.Refuses(t.Config)
	if err != nil {
		return fmt.Errorf("%w: task %s: %w", driver.ErrInvalid, t.ID.Task, err)
	}
	req, err := taskToProto(t)
	if err != nil {
		return fmt.Errorf("%w: task %s: %w", driver.ErrInvalid, t.ID.Task, err)
	}
	_, err = call(ctx, d, verb{"Start", d.limits.start, true}, req, nusav1.DriverClient.Start)
	return err
}

// Status implements driver.Driver.
func (d *Driver) Status(ctx context.Context, id driver.ID) (driver.Status, error) {
	r, err := call(ctx, d, verb{"Status", d.limits.quick, false}, &nusav1.RunRequest{Id: idToProto(id)}, nusav1.DriverClient.Status)
	if err != nil {
		return driver.Status{}, err
	}
	st, err := checkStatus(r)
	if err != nil {
		return st, d.breach("Status", err)
	}
	return st, nil
}

// Wait implements driver.Driver. It continues across restarts of the plugin, because the
// runs continue.
func (d *Driver) Wait(ctx context.Context, id driver.ID) (driver.Status, error) {
	req := &nusav1.WaitRunRequest{Id: idToProto(id), Limit: durationpb.New(d.limits.poll)}
	v := verb{"Wait", d.limits.poll + d.limits.quick, true}
	for missed := 0; ; {
		// A plugin that returns at once although the run has not ended is asked once a
		// second.
		pace := time.NewTimer(min(time.Second, d.limits.poll))
		r, err := call(ctx, d, v, req, nusav1.DriverClient.Wait)
		var e *Error
		switch {
		case err == nil:
			st, err := checkStatus(r)
			if err != nil {
				pace.Stop()
				return st, d.breach("Wait", err)
			}
			if st.State == driver.Ended {
				pace.Stop()
				return st, nil
			}
			missed = 0
		case errors.As(err, &e) && e.Kind == driver.ErrUnavailable && d.ctx.Err() == nil:
			if e.silent {
				missed++
			}
			if missed > maxMissed && d.healthy() {
				pace.Stop()
				return driver.Status{}, d.breach("Wait", fmt.Errorf("it responds to Fingerprint, but %d times not to Wait: %s", missed, e.Text))
			}
		default:
			pace.Stop()
			return driver.Status{}, err
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
			pace.Stop()
			return driver.Status{}, &Error{Plugin: d.cfg.Name, Verb: "Wait", Kind: ctx.Err(), Text: "the caller gave up"}
		}
	}
}

// healthy reports whether the plugin runs and responds.
func (d *Driver) healthy() bool {
	_, err := d.current(d.ctx, false)
	return err == nil && d.latest().Healthy
}

// Stop implements driver.Driver.
func (d *Driver) Stop(ctx context.Context, id driver.ID, grace time.Duration) error {
	_, err := call(ctx, d, verb{"Stop", grace + d.limits.slow, true},
		&nusav1.StopRunRequest{Id: idToProto(id), Grace: durationpb.New(grace)}, nusav1.DriverClient.Stop)
	return known(err)
}

// known returns nil for the error of an unknown run, because a stop or a removal of an
// unknown run succeeds.
func known(err error) error {
	if errors.Is(err, driver.ErrNotFound) {
		return nil
	}
	return err
}

// Renew implements driver.Driver.
func (d *Driver) Renew(ctx context.Context, id driver.ID, l lease.Deadline) error {
	_, err := call(ctx, d, verb{"Renew", d.limits.quick, false},
		&nusav1.RenewRunRequest{Id: idToProto(id), Deadline: durationpb.New(l.At), Number: l.Number}, nusav1.DriverClient.Renew)
	return err
}

// Stats implements driver.Driver.
func (d *Driver) Stats(ctx context.Context, id driver.ID) (driver.Stats, error) {
	r, err := call(ctx, d, verb{"Stats", d.limits.quick, false}, &nusav1.RunRequest{Id: idToProto(id)}, nusav1.DriverClient.Stats)
	if err != nil {
		return driver.Stats{}, err
	}
	return statsFromProto(r), nil
}

// Update implements driver.Driver.
func (d *Driver) Update(ctx context.Context, id driver.ID, r driver.Resources) error {
	_, err := call(ctx, d, verb{"Update", d.limits.slow, true},
		&nusav1.UpdateRunRequest{Id: idToProto(id), Limits: limitsToProto(r)}, nusav1.DriverClient.Update)
	return err
}

// Signal implements driver.Driver.
func (d *Driver) Signal(ctx context.Context, id driver.ID, signal int) error {
	_, err := call(ctx, d, verb{"Signal", d.limits.quick, false},
		&nusav1.SignalRunRequest{Id: idToProto(id), Signal: int32(signal)}, nusav1.DriverClient.Signal)
	return err
}

// Size implements driver.Driver.
func (d *Driver) Size(ctx context.Context, id driver.ID) (int64, error) {
	r, err := call(ctx, d, verb{"Size", d.limits.quick, false}, &nusav1.RunRequest{Id: idToProto(id)}, nusav1.DriverClient.Size)
	switch {
	case err != nil:
		return 0, known(err)
	case r.GetBytes() < 0:
		return 0, d.breach("Size", fmt.Errorf("bytes: %d", r.GetBytes()))
	}
	return r.GetBytes(), nil
}

// Remove implements driver.Driver.
func (d *Driver) Remove(ctx context.Context, id driver.ID) error {
	_, err := call(ctx, d, verb{"Remove", d.limits.slow, true}, &nusav1.RunRequest{Id: idToProto(id)}, nusav1.DriverClient.Remove)
	return known(err)
}
