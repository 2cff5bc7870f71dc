package spares

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/reservations"
	"github.com/nusa-scheduler/nusa/global/spares/step"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The numbers of the phases and those of the states are the same.
func phaseOf(s nusav1.SpareState) step.Phase { return step.Phase(s) }
func stateOf(p step.Phase) nusav1.SpareState { return nusav1.SpareState(p) }

var holds = []step.Hold{step.Wanted, step.Waiting, step.Held, step.Lost, step.GivenBack}

func holdOf(text string) step.Hold {
	for _, h := range holds {
		if h.String() == text {
			return h
		}
	}
	return step.Wanted
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func stampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// decode returns the state of a record.
func decode(rec *nusav1.SpareRecord) step.State {
	s := rec.GetSpare()
	out := step.State{
		Phase: phaseOf(s.GetState()), Asks: int(s.GetAsks()), Failures: int(s.GetFailures()), Due: timeOf(s.GetNextAttempt()),
		Outcome: phaseOf(rec.GetOutcome()), Prepared: timeOf(s.GetPrepared()), Message: s.GetMessage(), Until: timeOf(rec.GetJoinedBy()),
	}
	if s.GetExpires() != nil {
		out.Until = s.GetExpires().AsTime()
	}
	for i, h := range s.GetHosts() {
		out.Places = append(out.Places, step.Place{
			Round: int(rec.GetRounds()[i]), Hold: holdOf(h.GetState()), Host: step.Host{Name: h.GetNode(), Address: h.GetAddress(), Region: h.GetRegion()},
		})
	}
	return out
}

// encode returns a copy of a record with another state.
func encode(rec *nusav1.SpareRecord, s step.State, now time.Time) *nusav1.SpareRecord {
	out := proto.CloneOf(rec)
	to := out.GetSpare()
	to.State, to.Message, to.Asks, to.Failures, to.NextAttempt = stateOf(s.Phase), s.Message, int32(s.Asks), int32(s.Failures), stampOf(s.Due)
	to.Prepared, out.Outcome = stampOf(s.Prepared), stateOf(s.Outcome)
	switch s.Phase {
	case step.Asking, step.Joining:
		out.JoinedBy = stampOf(s.Until)
	case step.Ready:
		to.Expires = stampOf(s.Until)
	}
	if s.Phase.Ended() {
		to.Ended = timestamppb.New(now)
	}
	to.Hosts, out.Rounds = nil, nil
	for _, p := range s.Places {
		to.Hosts = append(to.Hosts, &nusav1.SpareHost{Node: p.Host.Name, Address: p.Host.Address, Region: p.Host.Region, State: p.Hold.String()})
		out.Rounds = append(out.Rounds, int32(p.Round))
	}
	return out
}

// keyOf returns the idempotency key of a reservation.
func keyOf(spare string, place, round int) string {
	return fmt.Sprintf("spare/%s/%d/%d", spare, place, round)
}

// reservationIDs returns the ids of the latest reservations of the places; "" for none.
func reservationIDs(rec *nusav1.SpareRecord) []string {
	out := make([]string, len(rec.GetRounds()))
	for i, round := range rec.GetRounds() {
		if round > 0 {
			out[i] = reservations.IDOf(rec.GetSpare().GetRequest().GetNamespace(), keyOf(rec.GetSpare().GetId(), i, int(round)))
		}
	}
	return out
}

// shown returns a spare as callers see it.
func shown(rec *nusav1.SpareRecord) *nusav1.Spare {
	out := proto.CloneOf(rec.GetSpare())
	for i, id := range reservationIDs(rec) {
		out.Hosts[i].Reservation = id
	}
	return out
}

// known returns what a reservation says about its place.
func known(r *nusav1.Reservation, refused string) step.Reservation {
	switch {
	case refused != "":
		return step.Reservation{Known: step.Refused, Why: refused}
	case r == nil:
		return step.Reservation{}
	case r.GetEnded() != nil:
		return step.Reservation{Known: step.Over, Why: r.GetMessage()}
	case r.GetState() == nusav1.ReservationState_RESERVATION_STATE_COMPLETED:
		return step.Reservation{Known: step.Done, Host: step.Host{Name: r.GetNode().GetName(), Address: r.GetNode().GetAddress(), Region: r.GetNode().GetRegion()}}
	}
	return step.Reservation{Known: step.Open}
}
