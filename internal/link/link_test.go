package link_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/internal/link"
)

// show formats a batch on one line.
func show[V any](b link.Batch[V]) string {
	var out []string
	if b.Full {
		out = append(out, "full")
	}
	if b.Last {
		out = append(out, "last")
	}
	for _, i := range b.Items {
		out = append(out, fmt.Sprintf("%s=%v", i.Key, i.Value))
	}
	for _, k := range b.Removed {
		out = append(out, "-"+k)
	}
	if b.Position != (link.Position{}) {
		out = append(out, fmt.Sprintf("@%s/%d", b.Position.Epoch, b.Position.Sequence))
	}
	return strings.Join(out, " ")
}

// drain reads batches until there is nothing to send.
func drain(c *link.Cursor[int], maxItems int) []string {
	var out []string
	for {
		b, ok := c.Next(maxItems)
		if !ok {
			return out
		}
		out = append(out, show(b))
	}
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestFullThenDeltas(t *testing.T) {
	o := link.NewOutbox[int]("e", 10)
	c := o.Cursor(link.Position{})
	expect(t, drain(c, 10), "full last @e/0")
	if !c.Done() {
		t.Error("the receiver has the empty set, but the cursor does not know it")
	}
	o.Put("a", 1)
	if c.Done() {
		t.Error("the cursor is done before a change is read")
	}
	o.Put("b", 2)
	o.Put("a", 3) // only the latest value is sent
	expect(t, drain(c, 10), "b=2 a=3 @e/3")
	o.Delete("b")
	o.Delete("b")
	o.Delete("never")
	expect(t, drain(c, 10), "-b @e/4")
	expect(t, drain(c, 10))
	expect(t, drain(o.Cursor(link.Position{}), 10), "full last a=3 @e/4")
}

func TestBatchesAreBounded(t *testing.T) {
	o := link.NewOutbox[int]("e", 10)
	for i := range 5 {
		o.Put(fmt.Sprint(i), i)
	}
	expect(t, drain(o.Cursor(link.Position{}), 2), "full 0=0 1=1", "full 2=2 3=3", "full last 4=4 @e/5")
	expect(t, drain(o.Cursor(link.Position{Epoch: "e", Sequence: 1}), 2), "1=1 2=2 @e/3", "3=3 4=4 @e/5")

	// An item that is larger than the bound is alone in a batch.
	c := o.Cursor(link.Position{Epoch: "e", Sequence: 1})
	size := func(i link.Item[int]) int { return i.Value }
	var got []string
	for {
		b, ok := c.NextWithin(10, 3, size)
		if !ok {
			break
		}
		got = append(got, show(b))
	}
	expect(t, got, "1=1 2=2 @e/3", "3=3 @e/4", "4=4 @e/5")
}

func TestCursorResumesFromAKnownPosition(t *testing.T) {
	o := link.NewOutbox[int]("e", 2)
	for i := range 4 {
		o.Put(fmt.Sprint(i), i)
	}
	o.Delete("0")
	at := func(epoch string, sequence uint64) []string {
		return drain(o.Cursor(link.Position{Epoch: epoch, Sequence: sequence}), 10)
	}
	expect(t, at("e", 5))
	expect(t, at("e", 4), "-0 @e/5")
	expect(t, at("e", 3), "3=3 -0 @e/5")
	full := "full last 1=1 2=2 3=3 @e/5"
	expect(t, at("e", 6), full)     // the position was lost in a restart of the outbox
	expect(t, at("other", 5), full) // the position belongs to another numbering
	expect(t, at("e", 0), full)
	// Two more removals: the oldest ones are forgotten.
	o.Delete("1")
	o.Delete("2")
	expect(t, at("e", 5), "full last 3=3 @e/7")
	expect(t, at("e", 6), "-2 @e/7")
}

func TestCallerChoosesSequenceNumbers(t *testing.T) {
	o := link.NewOutbox[int]("raft", 10)
	o.PutAt(10, "a", 1)
	o.PutAt(20, "b", 2)
	o.PutAt(20, "c", 3)
	o.PutAt(20, "d", 4)
	// Sequence 20 is acknowledged only with all of its changes.
	expect(t, drain(o.Cursor(link.Position{Epoch: "raft", Sequence: 5}), 2), "a=1 b=2 @raft/19", "c=3 d=4 @raft/20")
	expect(t, drain(o.Cursor(link.Position{Epoch: "raft", Sequence: 19}), 9), "b=2 c=3 d=4 @raft/20")
	o.DeleteAt(30, "a")
	expect(t, drain(o.Cursor(link.Position{Epoch: "raft", Sequence: 20}), 9), "-a @raft/30")

	// A new leader rebuilds the outbox from stored items.
	again := link.NewOutbox[int]("raft", 10)
	again.PutAt(20, "b", 2)
	again.PutAt(20, "c", 3)
	again.PutAt(20, "d", 4)
	again.ForgetUpTo(30)
	again.PutAt(31, "e", 5)
	expect(t, drain(again.Cursor(link.Position{Epoch: "raft", Sequence: 30}), 9), "e=5 @raft/31")
	expect(t, drain(again.Cursor(link.Position{Epoch: "raft", Sequence: 29}), 9), "full last b=2 c=3 d=4 e=5 @raft/31")
}

// TestChangesDuringAFullSet: a key that exists all the time is never missing from
// the set, a removed key is not sent, and an added key follows.
func TestChangesDuringAFullSet(t *testing.T) {
	o := link.NewOutbox[int]("e", 10)
	for i := range 4 {
		o.Put(fmt.Sprint(i), i)
	}
	c := o.Cursor(link.Position{})
	b, _ := c.Next(1)
	expect(t, []string{show(b)}, "full 0=0")
	o.Put("3", 33)
	o.Delete("1")
	o.Delete("0")
	o.Put("new", 9)
	expect(t, drain(c, 10), "full last 2=2 3=33 @e/4", "3=33 new=9 -1 -0 @e/8")
}

func TestTooManyRemovalsDuringAFullSet(t *testing.T) {
	o := link.NewOutbox[int]("e", 2)
	for i := range 8 {
		o.Put(fmt.Sprint(i), i)
	}
	c := o.Cursor(link.Position{})
	b, _ := c.Next(4)
	expect(t, []string{show(b)}, "full 0=0 1=1 2=2 3=3")
	for _, k := range []string{"0", "1", "2", "6"} {
		o.Delete(k)
	}
	// The first set ends. Removals of its keys were forgotten, so a second set follows.
	expect(t, drain(c, 10), "full last 4=4 5=5 7=7 @e/8", "full last 3=3 4=4 5=5 7=7 @e/12")
}

func TestInboxCompletesFullSets(t *testing.T) {
	in := link.NewInbox[int](3)
	known := slices.Values([]string{"c", "a", "b", "z"})
	if _, whole, err := in.Add(link.Batch[int]{Full: true, Items: []link.Item[int]{{Key: "a", Value: 1}}}, known); whole || err != nil {
		t.Fatalf("half a set: %v %v", whole, err)
	}
	if _, _, err := in.Add(link.Batch[int]{Items: []link.Item[int]{{Key: "a", Value: 1}}}, known); !errors.Is(err, link.ErrOutOfOrder) {
		t.Errorf("a delta inside a full set: %v", err)
	}
	change, whole, err := in.Add(link.Batch[int]{Full: true, Last: true, Items: []link.Item[int]{{Key: "a", Value: 2}, {Key: "b", Value: 3}}, Position: link.Position{Epoch: "e", Sequence: 4}}, known)
	if err != nil || !whole {
		t.Fatal(err)
	}
	if got := fmt.Sprint(change); got != "{[{a 2} {b 3}] [c z] {e 4} true}" {
		t.Errorf("change %s", got)
	}
	change, whole, err = in.Add(link.Batch[int]{Removed: []string{"a"}, Position: link.Position{Epoch: "e", Sequence: 5}}, nil)
	if got := fmt.Sprint(change, whole, err); got != "{[] [a] {e 5} false} true <nil>" {
		t.Errorf("delta %s", got)
	}
	big := link.Batch[int]{Full: true, Items: []link.Item[int]{{Key: "a"}, {Key: "b"}, {Key: "c"}, {Key: "d"}}}
	if _, _, err := in.Add(big, known); !errors.Is(err, link.ErrTooLarge) {
		t.Errorf("too many items: %v", err)
	}
}

// peer is the receiver: what it has stored.
type peer struct {
	set map[string]int
	at  link.Position
}

// TestSetsConverge plays puts, removals, lost batches and acknowledgements, reconnects and
// restarts of both sides. Then it lets the last connection finish, after which both sets
// are equal. At every moment the receiver has only values that the sender once had.
func TestSetsConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		maxTombstones := rapid.IntRange(1, 6).Draw(t, "tombstones")
		o := link.NewOutbox[int]("e0", maxTombstones)
		model := map[string]int{}
		p := peer{set: map[string]int{}}
		var c *link.Cursor[int]
		var in *link.Inbox[int]
		value, epoch, number := 0, 0, uint64(0)
		keys := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g"})
		connect := func() {
			c, in = o.Cursor(p.at), link.NewInbox[int](100)
		}
		connect()
		// deliver moves one batch; the acknowledgement may be lost.
		deliver := func(maxItems int, ack bool) bool {
			b, ok := c.Next(maxItems)
			if !ok {
				return false
			}
			if n := len(b.Items) + len(b.Removed); n > maxItems {
				t.Fatalf("%d items in a batch of at most %d", n, maxItems)
			}
			if b.Full && len(b.Removed) > 0 {
				t.Fatalf("removals in a full set: %s", show(b))
			}
			change, whole, err := in.Add(b, maps.Keys(p.set))
			if err != nil {
				t.Fatal(err)
			}
			if !whole {
				return true
			}
			for _, i := range change.Upserts {
				p.set[i.Key] = i.Value
			}
			for _, k := range change.Removed {
				delete(p.set, k)
			}
			if ack {
				p.at = change.Position
			}
			return true
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				value++
				k := keys.Draw(t, "key")
				number++
				o.PutAt(number, k, value)
				model[k] = value
			},
			"put several at once": func(t *rapid.T) {
				number++
				for range 3 {
					value++
					k := keys.Draw(t, "key")
					o.PutAt(number, k, value)
					model[k] = value
				}
			},
			"delete": func(t *rapid.T) {
				number++
				k := keys.Draw(t, "key")
				o.DeleteAt(number, k)
				delete(model, k)
			},
			"delete all": func(*rapid.T) {
				for _, k := range slices.Sorted(maps.Keys(model)) {
					number++
					o.DeleteAt(number, k)
				}
				clear(model)
			},
			"deliver": func(t *rapid.T) { deliver(rapid.IntRange(1, 4).Draw(t, "max"), true) },
			"deliver, acknowledgement lost": func(t *rapid.T) {
				if deliver(rapid.IntRange(1, 4).Draw(t, "max"), false) {
					connect()
				}
			},
			"batch lost": func(t *rapid.T) {
				c.Next(rapid.IntRange(1, 4).Draw(t, "max"))
				connect()
			},
			"reconnect": func(*rapid.T) { connect() },
			"sender restarts": func(t *rapid.T) {
				epoch++
				number = 0
				o = link.NewOutbox[int](fmt.Sprintf("e%d", epoch), maxTombstones)
				for _, k := range slices.Sorted(maps.Keys(model)) {
					number++
					o.PutAt(number, k, model[k])
				}
				connect()
			},
			"new leader rebuilds": func(t *rapid.T) {
				again := link.NewOutbox[int](o.Position().Epoch, maxTombstones)
				for _, k := range slices.Sorted(maps.Keys(model)) {
					again.PutAt(number, k, model[k])
				}
				again.ForgetUpTo(number)
				o = again
				connect()
			},
			"": func(t *rapid.T) {
				if o.Len() != len(model) {
					t.Fatalf("Len %d, want %d", o.Len(), len(model))
				}
				for k, v := range model {
					if got, ok := o.Get(k); !ok || got != v {
						t.Fatalf("Get(%s) = %d, %v", k, got, ok)
					}
				}
			},
		})
		for range 1000 {
			if !deliver(3, true) {
				break
			}
		}
		if !maps.Equal(p.set, model) {
			t.Fatalf("receiver %v\nsender   %v", p.set, model)
		}
		if p.at != o.Position() {
			t.Fatalf("acknowledged %v of %v", p.at, o.Position())
		}
		// Acknowledged changes are not sent again.
		if b, ok := o.Cursor(p.at).Next(1); ok && p.at.Sequence > 0 {
			t.Fatalf("sent again: %s", show(b))
		}
	})
}

// TestMemoryIsBounded: the memory of a set that keeps changing stays bounded.
func TestMemoryIsBounded(t *testing.T) {
	o := link.NewOutbox[int]("e", 8)
	for i := range 10_000 {
		o.Put(fmt.Sprint(i), i)
		o.Put("often", i)
		if i >= 4 {
			o.Delete(fmt.Sprint(i - 4))
		}
	}
	if n := link.Remembered(o); n > 2*(o.Len()+8)+20 {
		t.Errorf("%d changes remembered for %d keys", n, o.Len())
	}
}
