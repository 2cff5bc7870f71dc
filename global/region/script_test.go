package region_test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/golden"
)

// TestScripts runs testdata/*.txt: blocks of commands, then "----", then
// their output up to an empty line. Commands about slots of default/api/web:
//
//	slot FROM-LAST REGION STATE DESIRED GENERATION [system] [bound] [unbound] [home=REGION]
//	     [former=REGION:GENERATION[:hold][:run]]
//	answer REGION FROM-LAST GENERATION STATE [reason | bound | left | now]    (applied)
//	part FROM-LAST of FROM DESIRED [REGION | a condition]       (applied)
//	disown FROM | give-up FROM             (an operator stated that nothing runs in its region)
//	slots
//
// and about the session of region sea. The server is active until 1000s in term 7 (n7),
// the store has revision 100, the federation is fed:
//
//	config [lease=10s] [max=10s] [predecessor=0s] [until=1000s] [recovered=STOP] [unconfirmed] [revision=N] [earlier=TERM:N,...] [conflict]
//	open AT [cluster=C] [inc=N] [term=N] [index=N] [fence=N] [level=N] [restore=ID] [lost] [empty]
//	hello AT STREAM CLUSTER INC TERM [index=N] [fence=N] [level=N] [acked=N] [required=N]
//	      [bound=NAME] [restore=ID] [federation=ID] [known=NUMBER,NONCE] [revision=N]
//	lease AT STREAM ID [granted=N] [orders=N] [blocked=D] [index=N] [ordered]
//	acked AT STREAM POSITION [index=N] | received AT STREAM | ended AT STREAM | tick AT
//	declare AT WHY [empty]
//
// After each the state is printed; "bound" is when nothing runs that the lease binds,
// with a stop time of 5s.
func TestScripts(t *testing.T) {
	golden.Scripts(t, "testdata/*.txt", 2, runScript)
}

func runScript(t *testing.T, text string) string {
	w := &script{store: store{revision: 100}, config: region.Config{
		Lease: 10 * time.Second, ActiveUntil: 1000 * time.Second, Federation: "fed",
		Term: region.Term{Number: 7, Nonce: "n7"}, Revision: 100,
	}}
	var out, printed strings.Builder
	skipping := false
	for _, line := range strings.SplitAfter(text, "\n") {
		bare := strings.TrimSpace(line)
		switch {
		case skipping:
			if bare == "" {
				skipping = false
				out.WriteString(line)
			}
		case bare == "----":
			out.WriteString(line + printed.String())
			printed.Reset()
			skipping = true
		default:
			out.WriteString(line)
			if bare != "" && !strings.HasPrefix(bare, "#") {
				w.run(t, strings.Fields(bare), &printed)
			}
		}
	}
	return out.String()
}

// store holds the stored slots, and writes them as the server does.
type store struct {
	slots    []region.Slot
	revision int64
}

// write writes the changes of one transaction with their compares.
func (s *store) write(changes []region.Change) {
	if len(changes) == 0 {
		return
	}
	s.revision++
	for _, c := range changes {
		i := slices.IndexFunc(s.slots, func(o region.Slot) bool { return o.Key() == c.Slot.Key() })
		var have int64
		if i >= 0 {
			have = s.slots[i].Revision
		}
		if have != c.Slot.Revision {
			panic(fmt.Sprintf("compare of %s fails: revision is %d", c, have))
		}
		if c.Delete {
			s.slots = slices.Delete(s.slots, i, i+1)
			continue
		}
		put := c.Slot
		put.Revision, put.Generation = s.revision, cmp.Or(put.Generation, s.revision)
		if i >= 0 {
			s.slots[i] = put
		} else {
			s.slots = append(s.slots, put)
		}
	}
	slices.SortFunc(s.slots, func(a, b region.Slot) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Region, b.Region))
	})
}

type script struct {
	store
	config region.Config
	state  region.State
}

func (w *script) run(t *testing.T, words []string, out *strings.Builder) {
	switch words[0] {
	case "slot", "answer", "part", "disown", "give-up", "slots":
		w.runSlot(words, out)
	case "config":
		w.setConfig(words[1:])
	default:
		w.runSession(t, words, out)
	}
}

func (w *script) runSlot(words []string, out *strings.Builder) {
	args := words[1:]
	number := func(i int) int { n, _ := strconv.Atoi(strings.TrimPrefix(args[i], "g")); return n }
	switch words[0] {
	case "slot":
		from, to := bounds(args[0])
		s := region.Slot{
			Namespace: "default", Job: "api", Group: "web", From: from, To: to, Region: args[1], State: region.SlotState(args[2]),
			Desired: region.Desired(args[3]), Generation: int64(number(4)), Revision: int64(number(4)), JobVersion: 1,
		}
		for _, word := range args[5:] {
			s = withWord(s, word)
		}
		w.slots = append(w.slots, s)
	case "answer":
		from, to := bounds(args[1])
		a := region.Answer{Namespace: "default", Job: "api", Group: "web", From: from, To: to, Generation: int64(number(2)), State: region.SlotState(args[3])}
		if len(args) > 4 {
			a.Reason, a.Bound, a.MayRun = args[4], args[4] == "bound", args[4] == "left"
			if args[4] == "now" { // an answer of a session after all verdicts
				a.Reason, a.Fence = "", 1<<62
			}
		}
		o := region.ApplyAnswer(w.slots, args[0], a)
		for _, c := range o.Changes {
			fmt.Fprintln(out, c)
		}
		for _, f := range o.Released {
			fmt.Fprintln(out, "released", region.FormatRange(f[0], f[1]))
		}
		for _, m := range o.Moved {
			fmt.Fprintln(out, "moved", region.FormatRange(m.From, m.To), "to", m.Region)
		}
		if o.Ignored != "" {
			fmt.Fprintln(out, "ignored:", o.Ignored)
		}
		w.write(o.Changes)
	case "part":
		from, to := bounds(args[0])
		i := slices.IndexFunc(w.slots, func(s region.Slot) bool { return s.From == number(2) })
		switch {
		case len(args) > 4 && len(args[4]) == len("jkt"):
			w.write(region.ReturnPart(w.slots[i], from, to, args[4]))
			return
		case len(args) > 4:
			w.write(region.RevokeUnlessConnected(w.slots[i], from, to))
			return
		}
		w.write(region.StopPart(w.slots[i], from, to, region.Desired(args[3])))
	case "disown", "give-up":
		i := slices.IndexFunc(w.slots, func(s region.Slot) bool { return s.From == number(0) })
		change := region.Disown(w.slots[i])
		if words[0] == "give-up" {
			change = region.GiveUp(w.slots[i])
		}
		fmt.Fprintln(out, change)
		w.write([]region.Change{change})
	case "slots":
		for _, s := range w.slots {
			fmt.Fprintln(out, s)
		}
	}
}

// withWord adds one of the optional words of a slot.
func withWord(s region.Slot, word string) region.Slot {
	k, v, _ := strings.Cut(word, "=")
	switch k {
	case "system":
		s.System = true
	case "bound":
		s.Bound = true
	case "unbound":
		s.Unbound = true
	case "home":
		s.Home = v
	case "former":
		parts := strings.Split(v, ":")
		g, _ := strconv.Atoi(strings.TrimPrefix(parts[1], "g"))
		s.Former = append(slices.Clip(s.Former), region.FormerOwner{
			Region: parts[0], Generation: int64(g), Fence: 1, Hold: slices.Contains(parts[2:], "hold"), MayRun: slices.Contains(parts[2:], "run"),
		})
	}
	return s
}

// bounds reads "2-4" as from 2 to 5, and "3" as from 3 to 4.
func bounds(s string) (from, to int) {
	first, last, ranged := strings.Cut(s, "-")
	from, _ = strconv.Atoi(first)
	to = from + 1
	if ranged {
		to, _ = strconv.Atoi(last)
		to++
	}
	return from, to
}
