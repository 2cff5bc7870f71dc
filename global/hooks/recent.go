package hooks

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/cloudevent"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// recentDeliveries is the number of deliveries that a receiver remembers.
	recentDeliveries = 100
	// recentAttempts is the number of attempts that it remembers of each.
	recentAttempts = 16
)

// States of a remembered delivery, as webhook.proto names them.
const (
	statePending   = "pending"
	stateDelivered = "delivered"
	stateGivenUp   = "given up"
	stateDropped   = "dropped"
)

// recent remembers the latest deliveries to one endpoint, in the order of their latest attempts. The
// lock of the receiver guards it. Its messages are replaced, not changed.
type recent struct {
	list []*nusav1.WebhookDelivery // oldest first
}

// note remembers an attempt to send an event.
func (r *recent) note(e *nusav1.Event, at time.Time, resp webhook.Response, state string, next time.Time) {
	d := r.take(e.GetNumber())
	out := &nusav1.WebhookDelivery{
		Id: cloudevent.ID(e), Number: e.GetNumber(), Type: e.GetType(), Subject: e.GetSubject(), State: state,
		Attempts: append([]*nusav1.WebhookAttempt(nil), d.GetAttempts()...),
	}
	out.Attempts = append(out.Attempts, &nusav1.WebhookAttempt{
		Time: timestamppb.New(at), StatusCode: int32(resp.Status), Duration: durationpb.New(resp.Took), Error: resp.Err,
	})
	if extra := len(out.Attempts) - recentAttempts; extra > 0 {
		out.Attempts = out.Attempts[extra:]
	}
	if !next.IsZero() {
		out.NextAttempt = timestamppb.New(next)
	}
	r.add(out)
}

// dropped remembers that retention removed an event before it was sent.
func (r *recent) dropped(id string, number uint64) {
	d := r.take(number)
	r.add(&nusav1.WebhookDelivery{Id: id, Number: number, Type: d.GetType(), Subject: d.GetSubject(), Attempts: d.GetAttempts(), State: stateDropped})
}

// take removes the delivery of an event, and returns it.
func (r *recent) take(number uint64) *nusav1.WebhookDelivery {
	for i, d := range r.list {
		if d.GetNumber() == number {
			r.list = append(r.list[:i:i], r.list[i+1:]...)
			return d
		}
	}
	return nil
}

func (r *recent) add(d *nusav1.WebhookDelivery) {
	if len(r.list) == recentDeliveries {
		r.list = append([]*nusav1.WebhookDelivery(nil), r.list[1:]...)
	}
	r.list = append(r.list, d)
}

// latest returns the latest deliveries, the newest first.
func (r *recent) latest(limit int, failed bool) (out []*nusav1.WebhookDelivery) {
	for i := len(r.list) - 1; i >= 0 && len(out) < limit; i-- {
		if d := r.list[i]; !failed || d.GetState() != stateDelivered {
			out = append(out, d)
		}
	}
	return out
}
