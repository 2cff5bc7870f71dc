package uplink

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestSizeOfAnOrder: the approximate size of an order is not below the true one, and not far above.
func TestSizeOfAnOrder(t *testing.T) {
	full := region.Slot{
		Namespace: "default", Job: strings.Repeat("j", 60), Group: "web", From: 1 << 30, To: 1<<30 + 7, Region: "southeastasia", State: region.Accepted,
		Desired: region.DesiredRevoke, Generation: 1 << 60, JobVersion: 1 << 60, Run: 1 << 60, Hold: time.Hour + time.Nanosecond, UnlessConnected: true,
		Reason: "no_capacity", Message: strings.Repeat("m", 900), PlacedBecause: strings.Repeat("p", 300), ReturnTo: "japaneast", Bound: true, StopTime: time.Hour + time.Nanosecond,
	}
	for _, s := range []region.Slot{{}, full} {
		o := &nusav1.SlotOrder{Revision: 1 << 60, Slot: state.SlotToProto(s), Spec: make([]byte, 5000*s.Count())}
		if got, size := sizeOf(o), proto.Size(o); got < size || got > size+150 {
			t.Errorf("%d bytes, want %d or a little more", got, size)
		}
	}
}
