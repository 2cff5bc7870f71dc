package client

import (
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestEventsFitTheTerminal: a line that is too wide for the terminal continues on further lines. In
// a pipe each event is one line.
func TestEventsFitTheTerminal(t *testing.T) {
	long := &nusav1.Event{
		Time: timestamppb.New(sample.Noon), Type: "slot.offered", Subject: "default/checkout/web[0-5]",
		Message: "to southeastasia: score 61.3 (capacity 20.1, prefer 20.0, near 21.2: p50 68ms measured to japaneast), fits 8, the other regions are too far away",
	}
	short := &nusav1.Event{Time: timestamppb.New(sample.Noon), Type: "region.back", Subject: "tokyo"}
	young := &nusav1.Event{Reset_: true, Message: "the server has only the events of the last 12s"}
	for columns, lines := range map[int]int{0: 3, 80: 5, 240: 3} {
		var b strings.Builder
		for _, e := range []*nusav1.Event{long, short, young} {
			writeEvent(sample.Screen(&b, false, columns), e)
		}
		got := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
		if len(got) != lines {
			t.Errorf("%d columns: %d lines, want %d:\n%s", columns, len(got), lines, b.String())
		}
		for _, line := range got {
			if columns > 0 && utf8.RuneCountInString(line) > columns {
				t.Errorf("%d columns: a line of %d: %s", columns, utf8.RuneCountInString(line), line)
			}
		}
		if !strings.Contains(b.String(), "(the server has only the events of the last 12s)") || strings.Contains(b.String(), "gap") {
			t.Errorf("%d columns:\n%s", columns, b.String())
		}
	}
}
