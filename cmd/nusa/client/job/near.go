package job

import (
	"fmt"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// writeNear writes the present round trip of each near clause, and for how long a watched
// bound has been broken.
func writeNear(w *term.Screen, g *nusav1.GroupExplanation) {
	if len(g.GetNear()) == 0 {
		return
	}
	watched := map[[2]string]*nusav1.NearBound{}
	for _, b := range g.GetBounds() {
		watched[[2]string{b.GetRegion(), b.GetBound()}] = b
	}
	t := term.NewTable("FROM", "WANTED", ">NOW", "TO", "KNOWN", ">AGE", "#BOUND")
	for _, f := range g.GetNear() {
		now, old := "-", "-"
		if f.GetRtt() != nil {
			now = term.Millis(f.GetRtt()) + " ms"
		}
		if f.GetAge() != nil {
			old = term.Age(f.GetAge())
		}
		t.Row(f.GetRegion(), f.GetBound(), now, term.OrDash(f.GetTarget()), knownBy(f), old, nearText(w, f, watched[[2]string{f.GetRegion(), f.GetBound()}]))
	}
	fmt.Fprintln(w)
	t.Narrow(w.Width, "AGE", "TO", "KNOWN")
	t.Write(w)
}

// knownBy says how a round trip is known, for example "measured by udp" or "predicted
// ±12%".
func knownBy(f *nusav1.NearFare) string {
	text := term.Word(f.GetSource())
	switch {
	case f.GetState() == nusav1.EdgeState_EDGE_STATE_UNREACHABLE:
		return "unreachable"
	case f.GetSource() == nusav1.RTTSource_RTT_SOURCE_UNSPECIFIED:
		return "nothing"
	case f.GetSource() != nusav1.RTTSource_RTT_SOURCE_MEASURED:
		return fmt.Sprintf("%s ±%s", text, term.Percent(f.GetError()))
	case f.GetMethod() != "":
		text += " by " + f.GetMethod()
	}
	if f.GetState() == nusav1.EdgeState_EDGE_STATE_STALE {
		text += ", stale"
	}
	return text
}

// nearText returns the result of a near clause, and for how long a watched bound has been
// broken. b is nil if the bound is not watched.
func nearText(w *term.Screen, f *nusav1.NearFare, b *nusav1.NearBound) string {
	text := f.GetVerdict()
	switch text {
	case "kept":
		text = w.Good(text)
	case "broken":
		text = w.Bad(text)
	case "unknown":
		text = w.Wait("not kept: unknown")
	}
	if f.GetMessage() != "" {
		text += ", " + term.OneLine(f.GetMessage())
	}
	if b != nil {
		text += fmt.Sprintf("; watched: %s for %s, %s ms at worst; %s", b.GetState(), term.Age(b.GetSince()), term.Millis(b.GetWorst()), term.OneLine(b.GetMessage()))
	}
	return text
}
