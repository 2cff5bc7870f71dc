package state

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// drawSlot returns a random slot as the cores write it.
func drawSlot(t *rapid.T) region.Slot {
	name := rapid.SampledFrom([]string{"a", "web", "jakarta", "ü"})
	number := rapid.SampledFrom([]int64{0, 1, 127, 128, 1 << 40})
	span := rapid.SampledFrom([]time.Duration{0, 1, time.Second, 90*time.Second + 5, -time.Second})
	s := region.Slot{
		Namespace: name.Draw(t, "namespace"), Job: name.Draw(t, "job"), Group: name.Draw(t, "group"), Region: name.Draw(t, "region"),
		From: rapid.IntRange(0, 300).Draw(t, "from"), System: rapid.Bool().Draw(t, "system"),
		State:      rapid.SampledFrom([]region.SlotState{region.Offered, region.Accepted, region.Done}).Draw(t, "state"),
		Desired:    rapid.SampledFrom([]region.Desired{region.DesiredRun, region.DesiredStop, region.DesiredRevoke}).Draw(t, "desired"),
		Generation: number.Draw(t, "generation"), JobVersion: number.Draw(t, "version"),
		Run:  rapid.SampledFrom([]int64{0, 7, region.RunBegins}).Draw(t, "run"),
		Hold: span.Draw(t, "hold"), UnlessConnected: rapid.Bool().Draw(t, "unless"),
		Reason:  rapid.SampledFrom([]string{"", "rtt_too_high", "no such reason"}).Draw(t, "reason"),
		Message: rapid.SampledFrom([]string{"", "m", "é"}).Draw(t, "message"), PlacedBecause: rapid.SampledFrom([]string{"", "best"}).Draw(t, "because"),
		ReturnTo: rapid.SampledFrom([]string{"", "eu"}).Draw(t, "return"), Home: rapid.SampledFrom([]string{"", "sea"}).Draw(t, "home"),
		Bound: rapid.Bool().Draw(t, "bound"), StopTime: max(0, span.Draw(t, "stop")), Unbound: rapid.Bool().Draw(t, "unbound"), Vacant: rapid.Bool().Draw(t, "vacant"),
		Parallel: int(rapid.SampledFrom([]int32{0, 1, 1 << 20}).Draw(t, "parallel")),
	}
	s.To = s.From + rapid.IntRange(1, 300).Draw(t, "count")
	if s.System {
		s.From, s.To = 0, 1
	}
	if rapid.IntRange(0, 3).Draw(t, "moved") == 0 {
		s.Former = []region.FormerOwner{{Region: "old", Generation: 3, Moved: time.Unix(100, 5), Fence: 2, Bound: true, StopTime: time.Second}}
	}
	return s
}

// TestOrdersAreEncodedAsTheGeneratedCodeDoes compares random orders with the generated code.
func TestOrdersAreEncodedAsTheGeneratedCodeDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want, encoded, scratch := &nusav1.SlotOrders{}, []byte(nil), []byte("memory")
		for range rapid.IntRange(0, 3).Draw(t, "orders") {
			o := OrderCopy{slot: drawSlot(t), revision: rapid.SampledFrom([]int64{1, 300, 1 << 40}).Draw(t, "revision"), none: rapid.Bool().Draw(t, "none")}
			o.spec = rapid.SampledFrom([]*Record{nil, {named: true, name: "web", rest: []byte("rest")}, {rest: []byte("encoded")}, {}}).Draw(t, "spec")
			if rapid.IntRange(0, 5).Draw(t, "attempts") == 0 {
				o.attempts = []*nusav1.InstanceAttempts{{Index: 1}}
			}
			var ok bool
			encoded, scratch, ok = o.Append(encoded, scratch)
			if simple := o.none || len(o.attempts)+len(o.slot.Former) == 0; ok != simple {
				t.Fatalf("encoded by hand: %t", ok)
			}
			if m := o.Message(); m != nil && ok {
				want.Orders = append(want.Orders, m)
			}
		}
		got := &nusav1.SlotOrders{}
		if err := proto.Unmarshal(encoded, got); err != nil || !proto.Equal(got, want) {
			t.Fatalf("%v: got %v, want %v", err, got, want)
		}
	})
}

// TestSlotsAreWrittenAsTheGeneratedCodeDoes compares random slots, field by field, with the
// generated code: the stored bytes, and what another server reads from them.
func TestSlotsAreWrittenAsTheGeneratedCodeDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSlot(t)
		got, err := encodeSlot(&s)
		want, err2 := Encode(SlotToProto(s))
		if err != nil || err2 != nil || !bytes.Equal(got, want) {
			t.Fatalf("slot %v:\n got  %x, %v\n want %x, %v", s, got, err, want, err2)
		}
		read := &nusav1.Slot{}
		if err := Decode(store.KV{Key: slotKey(&s), Value: got}, read); err != nil {
			t.Fatal(err)
		}
		const revision = 99
		if here, there := storedSlot(&s, revision), slotFromProto(s.Key(), read, revision); !reflect.DeepEqual(here, there) {
			t.Fatalf("this server has  %+v\nanother one reads %+v", here, there)
		}
		var r slotReader
		byHand, ok := r.read(s.Key(), got, revision)
		simple := len(s.Former) == 0 && s.Hold <= 0 && !s.Bound // the rest is read by the generated code
		if want := slotFromProto(s.Key(), read, revision); ok != simple || ok && !reflect.DeepEqual(byHand, want) {
			t.Fatalf("read by hand: %t\n got  %+v\n want %+v", ok, byHand, want)
		}
	})
}

// TestEachFieldOfASlotIsRead: a slot that has one field of the message, whatever it is, is read as the generated code reads it.
func TestEachFieldOfASlotIsRead(t *testing.T) {
	const key, revision = "default/api/web/0", 99
	fields := (&nusav1.Slot{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		in, field := &nusav1.Slot{}, fields.Get(i)
		switch m := in.ProtoReflect(); {
		case field.IsList():
			m.Mutable(field).List().AppendMutable()
		case field.Message() != nil:
			d := m.Mutable(field).Message()
			d.Set(d.Descriptor().Fields().ByName("seconds"), protoreflect.ValueOfInt64(7))
		case field.Kind() == protoreflect.StringKind:
			m.Set(field, protoreflect.ValueOfString("api"))
		case field.Kind() == protoreflect.BoolKind:
			m.Set(field, protoreflect.ValueOfBool(true))
		case field.Kind() == protoreflect.EnumKind:
			m.Set(field, protoreflect.ValueOfEnum(2))
		case field.Kind() == protoreflect.Int32Kind:
			m.Set(field, protoreflect.ValueOfInt32(-3))
		case field.Kind() == protoreflect.Int64Kind:
			m.Set(field, protoreflect.ValueOfInt64(-3))
		default:
			t.Fatalf("a field of another kind: %s", field.Name())
		}
		value, err := Encode(in)
		if err != nil {
			t.Fatal(err)
		}
		var r slotReader
		got, err := r.slot(store.KV{Key: slotPrefix + key, Value: value, ModRevision: revision})
		if want := slotFromProto(key, in, revision); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\n got  %+v\n want %+v", field.Name(), err, got, want)
		}
		if reflect.DeepEqual(got, slotFromProto(key, &nusav1.Slot{}, revision)) && field.Number() != slotUnbound { // a slot without stop_time is unbound
			t.Errorf("%s: it does not change the slot", field.Name())
		}
	}
}

// TestSizeOfAnOrder: the approximate size of an order is not below the true one, and not far above.
func TestSizeOfAnOrder(t *testing.T) {
	full := region.Slot{
		Namespace: "default", Job: strings.Repeat("j", 60), Group: "web", From: 1 << 30, To: 1<<30 + 7, Region: "southeastasia", State: region.Accepted,
		Desired: region.DesiredRevoke, Generation: 1 << 60, JobVersion: 1 << 60, Run: 1 << 60, Hold: time.Hour + time.Nanosecond, UnlessConnected: true,
		Reason: "no_capacity", Message: strings.Repeat("m", 900), PlacedBecause: strings.Repeat("p", 300), ReturnTo: "japaneast", Bound: true, StopTime: time.Hour + time.Nanosecond,
	}
	for _, s := range []region.Slot{{}, full} {
		o := OrderCopy{slot: s, revision: 1 << 60, spec: &Record{rest: make([]byte, 5000*s.Count())}}
		if got, size := o.Size(), proto.Size(o.Message()); got < size || got > size+150 {
			t.Errorf("%d bytes, want %d or a little more", got, size)
		}
	}
}

// TestSlotsWithBrokenTextAreRefused: no server could read such a record again.
func TestSlotsWithBrokenTextAreRefused(t *testing.T) {
	s := region.Slot{Namespace: "default", Job: "api", Group: "web", To: 1, Message: "\xff"}
	if _, err := encodeSlot(&s); err == nil {
		t.Error("a text that is no UTF-8 is stored")
	}
}

// TestOrderThatOnlyShowsAnAnswerMayWait: an order that shows a region its own answer is not sent at
// once. Every other change of a slot is.
func TestOrderThatOnlyShowsAnAnswerMayWait(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.apply(RegionPrefix+"oslo", &nusav1.Region{ClusterId: "o"}, 1)
	st.apply(jobPrefix+"default/api", &nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 6), Version: 1}}, 2)
	var sent []string
	st.Regions["oslo"].Session = &Session{Wake: func() { sent = append(sent, "now") }, WakeLater: func() { sent = append(sent, "later") }}
	s := region.Slot{
		Namespace: "default", Job: "api", Group: "web", To: 6, Region: "oslo", State: region.Offered, Desired: region.DesiredRun, Generation: 3, JobVersion: 1,
	}
	for i, c := range []struct {
		change func()
		want   string
	}{
		{func() {}, "[now]"},
		{func() { s.State = region.Accepted }, "[later]"},
		{func() { s.JobVersion = 2 }, "[now]"},
		{func() { s.Desired = region.DesiredRevoke }, "[now]"},
		{func() { s.Generation, s.State, s.Desired = 9, region.Offered, region.DesiredRun }, "[now]"},
		{func() { s.State, s.To = region.Accepted, 3 }, "[now]"},
	} {
		c.change()
		sent = nil
		st.apply(slotPrefix+s.Key(), SlotToProto(s), int64(3+i))
		if got := fmt.Sprint(sent); got != c.want {
			t.Errorf("change %d: sent %s, want %s", i, got, c.want)
		}
	}
}

// TestASlotThatIsNotStoredLeavesNoTrace: a slot that cannot be encoded must not lead to the changes of later requests,
// which may be about other jobs.
func TestASlotThatIsNotStoredLeavesNoTrace(t *testing.T) {
	tx := NewTx(New(Beginning{Epoch: "e"}, func() time.Duration { return 0 }))
	slot := func(name, message string) []region.Change {
		return []region.Change{{Slot: region.Slot{Namespace: "default", Job: name, Group: "web", To: 1, Region: "seoul", Message: message}}}
	}
	mark := tx.mark()
	if err := tx.ChangeSlots(slot("one", "\xff")); err == nil {
		t.Fatal("text that is not UTF-8 was stored")
	}
	tx.rollback(mark)
	if err := tx.ChangeSlots(slot("two", "")); err != nil {
		t.Fatal(err)
	}
	if got := tx.Slots(JobKey{"default", "one"}, ""); len(got) > 0 {
		t.Errorf("job one has the slots %v", got)
	}
}
