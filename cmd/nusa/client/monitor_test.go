package client

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestWriteRecord(t *testing.T) {
	at := timestamppb.New(time.Date(2026, 11, 29, 1, 2, 3, 45e6, time.Local))
	for _, c := range []struct {
		record *nusav1.LogRecord
		want   string
	}{
		{&nusav1.LogRecord{Time: at, Level: "INFO", Message: "ready"}, "01:02:03.045  INFO   ready\n"},
		{&nusav1.LogRecord{Time: at, Level: "ERROR", Message: "no\x1b[2J disk", Dropped: 3, Attributes: []*nusav1.LogAttribute{
			{Key: "job", Value: "web"}, {Key: "error", Value: "two words\n"}, {Key: "empty"},
		}}, "(a gap: 3 records were dropped, because this reader was too slow)\n" + `01:02:03.045  ERROR  no[2J disk  job=web  error="two words\n"  empty=""` + "\n"},
	} {
		var b strings.Builder
		writeRecord((&term.Screen{}).Onto(&b), c.record)
		if b.String() != c.want {
			t.Errorf("%q, want %q", b.String(), c.want)
		}
	}
}

// TestRepeatedRecords: after a break the records that were printed are left out, and no others, although the clock of the
// next server is behind.
func TestRepeatedRecords(t *testing.T) {
	record := func(second int, message string) *nusav1.LogRecord {
		return &nusav1.LogRecord{Time: timestamppb.New(time.Unix(int64(second), 0)), Level: "INFO", Message: message, Attributes: []*nusav1.LogAttribute{{Key: "job", Value: "web"}}}
	}
	printed := []*nusav1.LogRecord{record(100, "a"), record(101, "b")}
	f := follower{printed: printed, repeats: 5}
	other := record(101, "b")
	other.Attributes[0].Value = "api"
	dropped := record(101, "b")
	dropped.Dropped = 7
	for i, c := range []struct {
		record *nusav1.LogRecord
		want   bool
	}{{record(100, "a"), true}, {dropped, true}, {record(40, "the new master"), false}, {other, false}, {record(101, "a"), false}, {record(100, "a"), false}} {
		if got := f.repeated(c.record); got != c.want {
			t.Errorf("record %d: repeated %v, want %v", i, got, c.want)
		}
	}
}

// monitorServer sends one record of each log. It knows only the region japaneast.
type monitorServer struct {
	nusav1.UnimplementedMonitorServer
	*notes
}

func (f monitorServer) Member(r *nusav1.MonitorMemberRequest, s grpc.ServerStreamingServer[nusav1.LogRecord]) error {
	f.note(r)
	if r.GetRegion() != "japaneast" {
		return status.Error(codes.NotFound, "there is no region "+r.GetRegion())
	}
	return s.Send(&nusav1.LogRecord{Level: "INFO", Message: "ready"})
}

// TestMonitorOfANode: the region of a node need not be named, and an error comes without the promise of a log.
func TestMonitorOfANode(t *testing.T) {
	f := newFake(t)
	out, errOut, code := f.run(t.Context(), "", "monitor", "--node", "n1", "--addr", f.addr)
	if code != 0 || !strings.Contains(out, "ready") || !strings.Contains(errOut, "the log of the agent of node n1") {
		t.Errorf("exit code %d: %s%s", code, out, errOut)
	}
	all := f.taken()
	if r, ok := all[len(all)-1].(*nusav1.MonitorMemberRequest); !ok || r.GetRegion() != "japaneast" || r.GetNode() != sample.Nodes()[0].GetId() {
		t.Errorf("asked for %v", all)
	}
	_, errOut, code = f.run(t.Context(), "", "monitor", "--region", "mars", "--addr", f.addr)
	if code != 1 || errOut != "nusa: there is no region mars\n" {
		t.Errorf("exit code %d: %s", code, errOut)
	}
}
