package state

import (
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// MaxMessage bounds the bytes of a message that a region sends about a slot or a job, and
	// MaxCounts the number of its counted reasons. Both are stored.
	MaxMessage = 1024
	MaxCounts  = 64
)

// slotFromProto returns a stored slot. The write that offered the slot did not know its own
// revision. So a generation of 0 stands for the record's revision, and run_begins says the same
// about the run.
func slotFromProto(key string, s *nusav1.Slot, revision int64) region.Slot {
	out := region.Slot{
		Namespace: s.GetNamespace(), Job: s.GetJob(), Group: s.GetGroup(),
		From: int(s.GetFrom()), To: int(s.GetTo()), Region: s.GetRegion(),
		System:     strings.Contains(key, "@"),
		State:      region.SlotState(EnumWord(s.GetState().String(), "SLOT_STATE_")),
		Desired:    region.Desired(EnumWord(s.GetDesired().String(), "SLOT_DESIRED_")),
		Generation: s.GetGeneration(), Revision: revision, JobVersion: s.GetJobVersion(), Run: s.GetRun(),
		Reason: ReasonFromProto(s.GetReason()), Message: s.GetMessage(), PlacedBecause: s.GetPlacedBecause(),
	}
	if out.Generation == 0 {
		out.Generation = revision
	}
	if s.GetRunBegins() {
		out.Run = revision
	}
	out.Hold, out.UnlessConnected = s.GetHold().AsDuration(), s.GetUnlessHeard()
	out.ReturnTo, out.Home, out.Vacant = s.GetReturnTo(), s.GetHome(), s.GetVacant()
	// A record of an earlier version of Nusa has neither field. At that time no lease bound
	// anything.
	out.Bound, out.StopTime = s.GetStopTime() != nil, s.GetStopTime().AsDuration()
	out.Unbound = s.GetUnbound() || !out.Bound && !out.Vacant
	for _, f := range s.GetFormer() {
		out.Former = append(out.Former, region.FormerOwner{
			Region: f.GetRegion(), Generation: f.GetGeneration(), Moved: f.GetMoved().AsTime(), Fence: f.GetFence(),
			Hold: f.GetHold(), MayRun: f.GetMayRun(), Bound: f.GetStopTime() != nil, StopTime: f.GetStopTime().AsDuration(),
		})
	}
	return out
}

// SlotToProto returns a slot as it is stored and sent.
func SlotToProto(s region.Slot) *nusav1.Slot {
	out := &nusav1.Slot{
		Namespace: s.Namespace, Job: s.Job, Group: s.Group,
		From: int32(s.From), To: int32(s.To), Region: s.Region,
		State:      nusav1.SlotState(enumValue(nusav1.SlotState_value, "SLOT_STATE_", string(s.State))),
		Desired:    nusav1.SlotDesired(enumValue(nusav1.SlotDesired_value, "SLOT_DESIRED_", string(s.Desired))),
		Generation: s.Generation, JobVersion: s.JobVersion, Run: s.Run,
		Reason: ReasonToProto(s.Reason), Message: s.Message, PlacedBecause: s.PlacedBecause,
		UnlessHeard: s.UnlessConnected, ReturnTo: s.ReturnTo, Home: s.Home, Unbound: s.Unbound, Vacant: s.Vacant,
	}
	if s.Run == region.RunBegins {
		out.Run, out.RunBegins = 0, true
	}
	if s.Hold > 0 {
		out.Hold = durationpb.New(s.Hold)
	}
	if s.Bound {
		out.StopTime = durationpb.New(s.StopTime)
	}
	for _, f := range s.Former {
		former := &nusav1.FormerOwner{
			Region: f.Region, Generation: f.Generation, Moved: timestamppb.New(f.Moved), Fence: f.Fence, Hold: f.Hold, MayRun: f.MayRun,
		}
		if f.Bound {
			former.StopTime = durationpb.New(f.StopTime)
		}
		out.Former = append(out.Former, former)
	}
	return out
}

// EnumWord returns the word that the cores use for a wire enum: the enum's name in lower case,
// without the prefix.
func EnumWord(name, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(name, prefix))
}

func enumValue(values map[string]int32, prefix, word string) int32 {
	return values[prefix+strings.ToUpper(word)]
}

// ReasonFromProto returns the word that the cores use for a reason, or "" for no reason.
func ReasonFromProto(r nusav1.Reason) string {
	if r == nusav1.Reason_REASON_UNSPECIFIED {
		return ""
	}
	return EnumWord(r.String(), "REASON_")
}

// ReasonToProto returns the wire enum for a reason of the cores.
func ReasonToProto(word string) nusav1.Reason {
	return nusav1.Reason(enumValue(nusav1.Reason_value, "REASON_", word))
}

// AnswerFromProto returns a region's answer, cut to MaxMessage and MaxCounts.
func AnswerFromProto(a *nusav1.SlotAnswer) region.Answer {
	counts := a.GetCounts()
	counts = counts[:min(len(counts), MaxCounts)]
	return region.Answer{
		Namespace: a.GetNamespace(), Job: a.GetJob(), Group: a.GetGroup(),
		From: int(a.GetFrom()), To: int(a.GetTo()), Generation: a.GetGeneration(),
		State:  region.SlotState(EnumWord(a.GetState().String(), "SLOT_STATE_")),
		Reason: ReasonFromProto(a.GetReason()), Message: CutMessage(a.GetMessage()), Counts: countsFromProto(counts),
		Bound: a.GetBound(), StopTime: a.GetStopTime().AsDuration(), MayRun: a.GetMayRun(),
	}
}

// CutMessage cuts a region's message to MaxMessage.
func CutMessage(message string) string {
	if len(message) > MaxMessage {
		message = strings.ToValidUTF8(message[:MaxMessage], "") + "…"
	}
	return message
}

func countsFromProto(in []*nusav1.CountedReason) []region.CountedReason {
	out := make([]region.CountedReason, 0, len(in))
	for _, c := range in {
		out = append(out, region.CountedReason{
			Reason: ReasonFromProto(c.GetReason()), Count: int(c.GetCount()), Message: CutMessage(c.GetMessage()), What: c.GetWhat(),
		})
	}
	return out
}

// CountsToProto returns counted reasons as the API shows them.
func CountsToProto(in []region.CountedReason) []*nusav1.CountedReason {
	out := make([]*nusav1.CountedReason, 0, len(in))
	for _, c := range in {
		out = append(out, &nusav1.CountedReason{
			Reason: ReasonToProto(c.Reason), Count: int32(c.Count), Message: c.Message, What: c.What,
		})
	}
	return out
}

// SetSession writes the durable part of a session state into a region's record. The fence never
// goes back. SetSession removes a loss, but never adds one: DeclareLost does that.
func SetSession(to *nusav1.Region, r region.Record) {
	to.ClusterId, to.Incarnation, to.Term, to.AppliedIndex = r.ClusterID, r.Incarnation, r.Term, r.AppliedIndex
	to.Fence, to.FeatureLevel, to.RestoreId = max(to.GetFence(), r.Fence), r.Level, r.RestoreID
	if !r.Lost {
		to.Lost = nil
	}
}

// recordOf returns the durable part of a region's session state.
func recordOf(name string, r *nusav1.Region) region.Record {
	return region.Record{
		Name: name, ClusterID: r.GetClusterId(), Incarnation: r.GetIncarnation(), Term: r.GetTerm(), AppliedIndex: r.GetAppliedIndex(),
		Fence: r.GetFence(), Level: r.GetFeatureLevel(), RestoreID: r.GetRestoreId(), Lost: r.GetLost() != nil, NothingRuns: r.GetLost().GetNothingRuns(),
	}
}

// beginningsOf returns the beginnings of the terms in a record. It returns none if a server that
// does not write beginnings wrote the record, because nothing is known of that server's term.
func beginningsOf(rec *nusav1.LeadershipRecord) (out []region.Beginning) {
	for _, b := range rec.GetTerms() {
		out = append(out, region.Beginning{
			Term: region.Term{Number: b.GetTerm().GetNumber(), Nonce: b.GetTerm().GetNonce()}, Earlier: b.GetEarlier(), Wrote: b.GetWrote(),
		})
	}
	if n := len(out); n > 0 && out[n-1].Term.Nonce != rec.GetTerm().GetNonce() {
		return nil
	}
	return out
}

func beginningsToProto(terms []region.Beginning) (out []*nusav1.TermBeginning) {
	for _, b := range terms {
		out = append(out, &nusav1.TermBeginning{
			Term: &nusav1.LeadershipTerm{Number: b.Term.Number, Nonce: b.Term.Nonce}, Earlier: b.Earlier, Wrote: b.Wrote,
		})
	}
	return out
}
