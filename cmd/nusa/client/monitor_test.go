package client

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

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
