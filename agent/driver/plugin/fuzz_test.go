package plugin

import (
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// most bounds a text that was clipped to n bytes: it may end with "…", and each byte that is not UTF-8
// may become three.
func most(n int) int { return 3*n + len("…") }

// FuzzAnswers: whatever a plugin answers, its texts are bounded and may be shown, and an accepted status is
// one that this package can send.
func FuzzAnswers(f *testing.F) {
	for _, m := range []proto.Message{
		&nusav1.HandshakeResponse{Protocol: 1, Name: "vm"},
		&nusav1.DriverInfo{Name: "vm", Healthy: true, Version: "1", Message: "good", Capabilities: []string{"exec", "stats", "exec"}},
		&nusav1.DriverInfo{Name: "vm", Capabilities: []string{"EXEC"}, Message: strings.Repeat("x\n", 3000)},
		&nusav1.RunStatus{State: nusav1.RunState_RUN_STATE_RUNNING, Pid: 7, Started: timestamppb.New(timestamppb.Now().AsTime())},
		&nusav1.RunStatus{State: nusav1.RunState_RUN_STATE_ENDED, Finished: &timestamppb.Timestamp{Seconds: 9}, ExitCode: 137, Signal: 9, Cause: nusav1.RunCause_RUN_CAUSE_STOPPED, Message: "as\x1basked"},
		&nusav1.RunStatus{State: 77, ExitCode: -9},
		&nusav1.RunStats{MemoryBytes: -1, Processes: -1},
	} {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		shown := func(text string, n int) {
			t.Helper()
			if len(text) > n || !utf8.ValidString(text) || strings.IndexFunc(text, unicode.IsControl) >= 0 {
				t.Fatalf("a text of %d bytes: %.80q", len(text), text)
			}
		}
		shown(clip(string(raw), 100), most(100))
		var hand nusav1.HandshakeResponse
		if proto.Unmarshal(raw, &hand) == nil {
			switch err := checkHandshake("vm", &hand); {
			case err != nil:
				shown(err.Error(), 1000)
			case hand.GetName() != "vm" || hand.GetProtocol() < Oldest || hand.GetProtocol() > Newest:
				t.Fatalf("accepted: %v", &hand)
			}
		}
		var info nusav1.DriverInfo
		if proto.Unmarshal(raw, &info) == nil {
			fp := checkFingerprint("vm", &info, []string{"exec"})
			shown(fp.Message, most(maxMessage)+200)
			shown(fp.Version, most(maxVersion))
			if fp.Healthy && info.GetName() != "vm" || len(fp.Capabilities) > maxCapabilities {
				t.Fatalf("accepted: %+v", fp)
			}
			for _, c := range fp.Capabilities {
				if c == "" || c == "exec" || len(c) > maxCapability || strings.IndexFunc(c, notInCapability) >= 0 {
					t.Fatalf("capability %q", c)
				}
			}
		}
		var st nusav1.RunStatus
		if proto.Unmarshal(raw, &st) == nil {
			checkStatuses(t, &st, shown)
		}
		var stats nusav1.RunStats
		if proto.Unmarshal(raw, &stats) == nil {
			_ = statsFromProto(&stats)
		}
	})
}

func checkStatuses(t *testing.T, wire *nusav1.RunStatus, shown func(string, int)) {
	t.Helper()
	st, err := checkStatus(wire)
	if err != nil {
		shown(err.Error(), 1000)
		if !errors.Is(err, driver.ErrContract) || st != (driver.Status{}) {
			t.Fatalf("%+v and %v", st, err)
		}
		return
	}
	shown(st.Message, most(maxMessage))
	st.Message = "" // the second cut may be shorter
	again, err := checkStatus(statusToProto(st))
	if err != nil || again != st {
		t.Fatalf("%+v comes back as %+v: %v", st, again, err)
	}
}
