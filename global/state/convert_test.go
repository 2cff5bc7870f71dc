package state

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestAnswersAreBounded: the answers of regions are stored, so they are cut.
func TestAnswersAreBounded(t *testing.T) {
	a := AnswerFromProto(&nusav1.SlotAnswer{
		State: nusav1.SlotState_SLOT_STATE_RETURNED, Message: strings.Repeat("é", MaxMessage),
		Counts: make([]*nusav1.CountedReason, MaxCounts+1),
	})
	if a.State != region.Returned || len(a.Message) > MaxMessage+len("…") || !utf8.ValidString(a.Message) || len(a.Counts) != MaxCounts {
		t.Errorf("%d bytes, %d counts", len(a.Message), len(a.Counts))
	}
}
