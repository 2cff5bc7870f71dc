package state

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// MaxMessage bounds the bytes of a message that a region sends about a slot or a job, and
	// MaxCounts the number of its counted reasons. Both are stored.
	MaxMessage = 1024
	MaxCounts  = 64
)

// slotFromProto returns a stored slot. The write that offered the slot did not know its own
// revision. So a generation of 0 stands for the revision of the record. With run_begins, that
// revision is also the run.
func slotFromProto(key string, s *nusav1.Slot, revision int64) region.Slot {
	out := region.Slot{
		Namespace: s.GetNamespace(), Job: s.GetJob(), Group: s.GetGroup(),
		From: int(s.GetFrom()), To: int(s.GetTo()), Region: s.GetRegion(),
		System: strings.Contains(key, "@"),
		State:  slotStates.word(s.GetState()), Desired: slotDesires.word(s.GetDesired()),
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
	out.Parallel = int(s.GetParallel())
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
		State: slotStates.value(s.State), Desired: slotDesires.value(s.Desired),
		Generation: s.Generation, JobVersion: s.JobVersion, Run: s.Run,
		Reason: ReasonToProto(s.Reason), Message: s.Message, PlacedBecause: s.PlacedBecause,
		UnlessHeard: s.UnlessConnected, ReturnTo: s.ReturnTo, Home: s.Home, Unbound: s.Unbound, Vacant: s.Vacant,
		Parallel: int32(s.Parallel),
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

// words maps the values of a wire enum to the words that the cores use, and back.
type words[E ~int32, W ~string] struct {
	words  map[E]W
	values map[W]E
}

func wordsOf[E ~int32, W ~string](names map[int32]string, prefix string) words[E, W] {
	out := words[E, W]{map[E]W{}, map[W]E{}}
	for n, name := range names {
		word := W(EnumWord(name, prefix))
		out.words[E(n)], out.values[word] = word, E(n)
	}
	return out
}

// word returns the word for a value. For a value of a newer version that is the number.
func (w words[E, W]) word(e E) W {
	if word, known := w.words[e]; known {
		return word
	}
	return W(strconv.Itoa(int(e)))
}

// value returns the value for a word, 0 for an unknown one.
func (w words[E, W]) value(word W) E { return w.values[word] }

var (
	slotStates  = wordsOf[nusav1.SlotState, region.SlotState](nusav1.SlotState_name, "SLOT_STATE_")
	slotDesires = wordsOf[nusav1.SlotDesired, region.Desired](nusav1.SlotDesired_name, "SLOT_DESIRED_")
	reasons     = wordsOf[nusav1.Reason, string](nusav1.Reason_name, "REASON_")
)

// ReasonFromProto returns the word that the cores use for a reason, or "" for no reason.
func ReasonFromProto(r nusav1.Reason) string {
	if r == nusav1.Reason_REASON_UNSPECIFIED {
		return ""
	}
	return reasons.word(r)
}

// ReasonToProto returns the wire enum for a reason of the cores.
func ReasonToProto(word string) nusav1.Reason {
	if word == "" {
		return nusav1.Reason_REASON_UNSPECIFIED
	}
	return reasons.value(word)
}

// AnswerFromProto returns a region's answer, cut to MaxMessage and MaxCounts.
func AnswerFromProto(a *nusav1.SlotAnswer) region.Answer {
	counts := a.GetCounts()
	counts = counts[:min(len(counts), MaxCounts)]
	return region.Answer{
		Namespace: a.GetNamespace(), Job: a.GetJob(), Group: a.GetGroup(),
		From: int(a.GetFrom()), To: int(a.GetTo()), Generation: a.GetGeneration(),
		State: slotStates.word(a.GetState()), Reason: ReasonFromProto(a.GetReason()), Message: CutMessage(a.GetMessage()), Counts: countsFromProto(counts),
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

// The fields of nusav1.Slot, see job.proto.
const (
	slotNamespace     protowire.Number = 1
	slotJob           protowire.Number = 2
	slotGroup         protowire.Number = 3
	slotFrom          protowire.Number = 4
	slotTo            protowire.Number = 5
	slotRegion        protowire.Number = 6
	slotState         protowire.Number = 7
	slotDesired       protowire.Number = 8
	slotGeneration    protowire.Number = 9
	slotJobVersion    protowire.Number = 10
	slotReason        protowire.Number = 11
	slotMessage       protowire.Number = 12
	slotPlacedBecause protowire.Number = 13
	slotRun           protowire.Number = 14
	slotHold          protowire.Number = 15
	slotUnlessLinked  protowire.Number = 16
	slotReturnTo      protowire.Number = 18
	slotHome          protowire.Number = 19
	slotStopTime      protowire.Number = 20
	slotUnbound       protowire.Number = 21
	slotVacant        protowire.Number = 22
	slotRunBegins     protowire.Number = 23
	slotParallel      protowire.Number = 24
)

// encodeSlot writes what Encode(SlotToProto(s)) writes, but field by field, because most stored
// records are slots.
func encodeSlot(s *region.Slot) ([]byte, error) { return appendSlot(nil, s) }

// appendSlot appends what encodeSlot returns.
func appendSlot(to []byte, s *region.Slot) ([]byte, error) {
	if len(s.Former) > 0 {
		value, err := Encode(SlotToProto(*s))
		return append(to, value...), err
	}
	for _, text := range []string{s.Namespace, s.Job, s.Group, s.Region, s.Message, s.PlacedBecause, s.ReturnTo, s.Home} {
		if !utf8.ValidString(text) {
			return to, fmt.Errorf("encode slot %s: %q is not UTF-8", s.Key(), text)
		}
	}
	const numbers = 96 // bytes of the other fields, approximately
	w := slotWriter(slices.Grow(to, numbers+len(s.Namespace)+len(s.Job)+len(s.Group)+len(s.Region)+
		len(s.Message)+len(s.PlacedBecause)+len(s.ReturnTo)+len(s.Home)))
	w = append(w, formatProto)
	w.text(slotNamespace, s.Namespace)
	w.text(slotJob, s.Job)
	w.text(slotGroup, s.Group)
	w.number(slotFrom, uint64(int32(s.From)))
	w.number(slotTo, uint64(int32(s.To)))
	w.text(slotRegion, s.Region)
	w.number(slotState, uint64(slotStates.value(s.State)))
	w.number(slotDesired, uint64(slotDesires.value(s.Desired)))
	w.number(slotGeneration, uint64(s.Generation))
	w.number(slotJobVersion, uint64(s.JobVersion))
	w.number(slotReason, uint64(ReasonToProto(s.Reason)))
	w.text(slotMessage, s.Message)
	w.text(slotPlacedBecause, s.PlacedBecause)
	if s.Run != region.RunBegins {
		w.number(slotRun, uint64(s.Run))
	}
	if s.Hold > 0 {
		w.duration(slotHold, s.Hold)
	}
	w.flag(slotUnlessLinked, s.UnlessConnected)
	w.text(slotReturnTo, s.ReturnTo)
	w.text(slotHome, s.Home)
	if s.Bound {
		w.duration(slotStopTime, s.StopTime)
	}
	w.flag(slotUnbound, s.Unbound)
	w.flag(slotVacant, s.Vacant)
	w.flag(slotRunBegins, s.Run == region.RunBegins)
	w.number(slotParallel, uint64(int32(s.Parallel)))
	return w, nil
}

// slotWriter appends the fields whose value is not zero.
type slotWriter []byte

func (w *slotWriter) text(field protowire.Number, text string) {
	if text != "" {
		*w = protowire.AppendString(protowire.AppendTag(*w, field, protowire.BytesType), text)
	}
}

func (w *slotWriter) number(field protowire.Number, n uint64) {
	if n != 0 {
		*w = protowire.AppendVarint(protowire.AppendTag(*w, field, protowire.VarintType), n)
	}
}

func (w *slotWriter) flag(field protowire.Number, set bool) {
	w.number(field, protowire.EncodeBool(set))
}

// duration appends a google.protobuf.Duration, even if it is 0.
func (w *slotWriter) duration(field protowire.Number, d time.Duration) {
	var buffer [2 * 11]byte
	in := slotWriter(buffer[:0])
	in.number(1, uint64(int64(d)/int64(time.Second)))
	in.number(2, uint64(int64(int32(int64(d)%int64(time.Second)))))
	*w = protowire.AppendBytes(protowire.AppendTag(*w, field, protowire.BytesType), in)
}

// slotReader decodes stored slots. It has the names that many slots share, and one message for all slots that
// need one. It is for one goroutine.
type slotReader struct {
	names map[string]string
	msg   nusav1.Slot
}

// maxSharedNames bounds the names of a slotReader.
const maxSharedNames = 4096

// slot returns a stored slot.
func (r *slotReader) slot(kv store.KV) (region.Slot, error) {
	key := kv.Key[len(slotPrefix):]
	if s, ok := r.read(key, kv.Value, kv.ModRevision); ok {
		return s, nil
	}
	err := Decode(kv, &r.msg)
	return slotFromProto(key, &r.msg, kv.ModRevision), err
}

// read returns what slotFromProto makes of a stored slot, but field by field: a server loads more slots than other
// records. ok is false for a slot that needs the generated code, such as one with former owners. key is Slot.Key.
func (r *slotReader) read(key string, value []byte, revision int64) (s region.Slot, ok bool) {
	if len(value) == 0 || value[0] != formatProto {
		return s, false
	}
	s.System, s.Revision = strings.Contains(key, "@"), revision
	var state, desired, begins uint64
	for b := value[1:]; len(b) > 0; {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return s, false
		}
		b = b[n:]
		switch kind {
		case protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(b)
			ok = true
			switch field {
			case slotState:
				state = v
			case slotDesired:
				desired = v
			case slotRunBegins:
				begins = v
			default:
				ok = readNumber(&s, field, v)
			}
		case protowire.BytesType:
			var v []byte
			v, n = protowire.ConsumeBytes(b)
			ok = r.readBytes(&s, field, key, v)
		default:
			return s, false
		}
		if n < 0 || !ok {
			return s, false
		}
		b = b[n:]
	}
	s.State, s.Desired = slotStates.word(nusav1.SlotState(state)), slotDesires.word(nusav1.SlotDesired(desired))
	if s.Generation == 0 {
		s.Generation = revision
	}
	if begins != 0 {
		s.Run = revision
	}
	s.Unbound = s.Unbound || !s.Vacant // Bound needs the generated code
	return s, true
}

// readNumber sets a field of a slot that is stored as a number.
func readNumber(s *region.Slot, field protowire.Number, v uint64) bool {
	switch field {
	case slotFrom:
		s.From = int(int32(v))
	case slotTo:
		s.To = int(int32(v))
	case slotGeneration:
		s.Generation = int64(v)
	case slotJobVersion:
		s.JobVersion = int64(v)
	case slotReason:
		s.Reason = ReasonFromProto(nusav1.Reason(v))
	case slotRun:
		s.Run = int64(v)
	case slotUnlessLinked:
		s.UnlessConnected = v != 0
	case slotUnbound:
		s.Unbound = v != 0
	case slotVacant:
		s.Vacant = v != 0
	case slotParallel:
		s.Parallel = int(int32(v))
	default:
		return false
	}
	return true
}

// readBytes sets a field of a slot that is stored as a text or a message. key begins with the names of the job.
func (r *slotReader) readBytes(s *region.Slot, field protowire.Number, key string, v []byte) bool {
	switch field {
	case slotNamespace:
		s.Namespace = r.name(v)
	case slotJob:
		if at := len(s.Namespace) + 1; len(key) > at+len(v) && key[at:at+len(v)] == string(v) {
			s.Job = key[at : at+len(v)]
			return true
		}
		s.Job = string(v)
	case slotGroup:
		s.Group = r.name(v)
	case slotRegion:
		s.Region = r.name(v)
	case slotMessage:
		s.Message = string(v)
	case slotPlacedBecause:
		s.PlacedBecause = string(v)
	case slotReturnTo:
		s.ReturnTo = r.name(v)
	case slotHome:
		s.Home = r.name(v)
	default:
		return false
	}
	return utf8.Valid(v)
}

// name returns a name that many slots have.
func (r *slotReader) name(v []byte) string {
	if name, known := r.names[string(v)]; known {
		return name
	}
	name := string(v)
	if r.names == nil {
		r.names = map[string]string{}
	}
	if len(r.names) < maxSharedNames {
		r.names[name] = name
	}
	return name
}

// storedSlot returns a slot with the values that it would have after encodeSlot and slotFromProto,
// stored at a revision.
func storedSlot(from *region.Slot, revision int64) region.Slot {
	if len(from.Former) > 0 {
		return slotFromProto(from.Key(), SlotToProto(*from), revision)
	}
	s := *from
	s.Revision, s.Former = revision, nil
	if s.Generation == 0 {
		s.Generation = revision
	}
	if s.Run == region.RunBegins {
		s.Run = revision
	}
	if !s.Bound {
		s.StopTime = 0
	}
	if s.Reason != "" {
		s.Reason = ReasonFromProto(ReasonToProto(s.Reason))
	}
	s.Hold = max(0, s.Hold)
	s.Unbound = s.Unbound || !s.Bound && !s.Vacant
	return s
}

func formerOf(s *region.Slot, name string) int {
	for i := range s.Former {
		if s.Former[i].Region == name {
			return i
		}
	}
	return -1
}
