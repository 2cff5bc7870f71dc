package state

import (
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestAnswersAreBounded: the answers of regions are stored, so long texts in them are cut.
func TestAnswersAreBounded(t *testing.T) {
	a := AnswerFromProto(&nusav1.SlotAnswer{
		State: nusav1.SlotState_SLOT_STATE_RETURNED, Message: strings.Repeat("é", MaxMessage),
		Counts: make([]*nusav1.CountedReason, MaxCounts+1),
	})
	if a.State != region.Returned || len(a.Message) > MaxMessage+len("…") || !utf8.ValidString(a.Message) || len(a.Counts) != MaxCounts {
		t.Errorf("%d bytes, %d counts", len(a.Message), len(a.Counts))
	}
}

// TestAnswersArriveWhole: every field of a region's answer arrives. Without Bound, a slot that was
// updated to a version with a lease would never move.
func TestAnswersArriveWhole(t *testing.T) {
	got := AnswerFromProto(&nusav1.SlotAnswer{
		Namespace: "default", Job: "api", Group: "web", From: 2, To: 5, Generation: 7, State: nusav1.SlotState_SLOT_STATE_ACCEPTED,
		Reason: nusav1.Reason_REASON_RTT_TOO_HIGH, Message: "m", Counts: []*nusav1.CountedReason{{Count: 3}}, Bound: true, MayRun: true,
		StopTime: durationpb.New(9 * time.Second),
	})
	want := region.Answer{
		Namespace: "default", Job: "api", Group: "web", From: 2, To: 5, Generation: 7, State: region.Accepted,
		Reason: "rtt_too_high", Message: "m", Counts: []region.CountedReason{{Count: 3}}, Bound: true, MayRun: true, StopTime: 9 * time.Second,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestEveryFieldOfASlotIsStored: every field of a slot comes back from its record.
func TestEveryFieldOfASlotIsStored(t *testing.T) {
	want := region.Slot{
		Namespace: "default", Job: "api", Group: "web", From: 2, To: 5, Region: "sea", State: region.Accepted, Desired: region.DesiredRevoke,
		Generation: 7, Revision: 9, JobVersion: 3, Run: 2, Hold: time.Minute, UnlessConnected: true,
		Reason: "rtt_too_high", Message: "m", PlacedBecause: "p", ReturnTo: "eu", Home: "jakarta", Bound: true, StopTime: 5 * time.Second, Unbound: true, Vacant: true,
		Former: []region.FormerOwner{
			{Region: "jakarta", Generation: 4, Moved: time.Unix(100, 0).UTC(), Fence: 2, Hold: true, MayRun: true, Bound: true, StopTime: 2 * time.Second},
			{Region: "eu", Generation: 6, Moved: time.Unix(200, 0).UTC(), Fence: 1},
		},
	}
	if got := slotFromProto(want.Key(), SlotToProto(want), want.Revision); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestEarlierSlotsAreUnbound: no lease bound the slots that an earlier version stored. A stop time
// of 0 s counts as a stop time.
func TestEarlierSlotsAreUnbound(t *testing.T) {
	if s := slotFromProto("default/api/web/0", &nusav1.Slot{}, 1); s.Bound || !s.Unbound {
		t.Errorf("earlier slot: bound %v, unbound %v", s.Bound, s.Unbound)
	}
	if s := slotFromProto("default/api/web/0", SlotToProto(region.Slot{Bound: true}), 1); !s.Bound || s.Unbound {
		t.Errorf("bound slot: bound %v, unbound %v", s.Bound, s.Unbound)
	}
}

// TestRunBeginsWithTheRecord: a slot that is stored together with its job names no run, since the
// transaction did not know its own revision. Every reader gets that revision.
func TestRunBeginsWithTheRecord(t *testing.T) {
	stored := SlotToProto(region.Slot{Namespace: "default", Job: "api", Group: "web", To: 1, Region: "sea", Run: region.RunBegins})
	if stored.GetRun() != 0 || !stored.GetRunBegins() {
		t.Fatalf("stored as %v", stored)
	}
	read := slotFromProto("default/api/web/0", stored, 70)
	if read.Run != 70 || read.Generation != 70 {
		t.Errorf("read as run %d of generation %d", read.Run, read.Generation)
	}
	if again := SlotToProto(read); again.GetRun() != 70 || again.GetRunBegins() {
		t.Errorf("the next write stores %v", again)
	}
}

// TestFieldNumbers: the numbers of the hand-written encoding equal those of the messages. A field
// is either written or read by hand, or known here with the number 0.
func TestFieldNumbers(t *testing.T) {
	for _, c := range []struct {
		message proto.Message
		numbers map[string]protowire.Number
	}{
		{&nusav1.Slot{}, map[string]protowire.Number{
			"namespace": slotNamespace, "job": slotJob, "group": slotGroup, "from": slotFrom, "to": slotTo, "region": slotRegion,
			"state": slotState, "desired": slotDesired, "generation": slotGeneration, "jobVersion": slotJobVersion,
			"reason": slotReason, "message": slotMessage, "placedBecause": slotPlacedBecause, "run": slotRun, "hold": slotHold,
			"unlessHeard": slotUnlessLinked, "returnTo": slotReturnTo, "home": slotHome, "stopTime": slotStopTime,
			"unbound": slotUnbound, "vacant": slotVacant, "runBegins": slotRunBegins, "parallel": slotParallel,
			"former": 0, // encodeSlot leaves slots with former owners to the generated code
		}},
		{&nusav1.JobRecord{}, map[string]protowire.Number{"job": recordJob, "purge": 0, "since": 0, "versions": 0, "tag": 0}},
		{&nusav1.HistoryRecord{}, map[string]protowire.Number{"line": historyLine, "ended": historyEnded, "body": 0}},
	} {
		fields := c.message.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			want, known := c.numbers[f.JSONName()]
			if !known || want != 0 && want != f.Number() {
				t.Errorf("%s: number %d, known %t as %d", f.FullName(), f.Number(), known, want)
			}
		}
		if len(c.numbers) != fields.Len() {
			t.Errorf("%s has %d fields, known are %d", c.message.ProtoReflect().Descriptor().Name(), fields.Len(), len(c.numbers))
		}
	}
	if f := (&nusav1.Job{}).ProtoReflect().Descriptor().Fields().ByNumber(jobSpec); f == nil || f.Name() != "spec" {
		t.Errorf("field %d of Job is not the spec", jobSpec)
	}
}
