package plugin

import (
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/driver"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// fill sets every field to its own value.
func fill(v reflect.Value, n *int64) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key"), reflect.ValueOf("value"))
	case reflect.String:
		v.SetString(strings.Repeat("x", int(*n)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	default:
		v.SetInt(*n)
	}
}

// TestEveryFieldIsConverted: every field of a task, of statistics and of limits is
// converted. A plugin would not get a field that the conversion leaves out.
func TestEveryFieldIsConverted(t *testing.T) {
	var n int64
	var task driver.Task
	fill(reflect.ValueOf(&task).Elem(), &n)
	wire, err := taskToProto(task)
	if err != nil {
		t.Fatal(err)
	}
	bytes, err := proto.Marshal(wire)
	if err != nil {
		t.Fatal(err)
	}
	var back nusav1.StartRunRequest
	if err := proto.Unmarshal(bytes, &back); err != nil {
		t.Fatal(err)
	}
	if got := taskFromProto(&back); !reflect.DeepEqual(got, task) {
		t.Errorf("became\n%+v, was\n%+v", got, task)
	}
	var stats driver.Stats
	fill(reflect.ValueOf(&stats).Elem(), &n)
	if got := statsFromProto(statsToProto(stats)); got != stats {
		t.Errorf("became %+v, was %+v", got, stats)
	}
	for _, st := range []driver.Status{
		{State: driver.Running, PID: 7, Started: time.Unix(1, 2).UTC()},
		{State: driver.Ended, PID: 7, Started: time.Unix(1, 2).UTC(), Finished: time.Unix(3, 4).UTC(), ExitCode: 137, Signal: 9, Cause: driver.CauseStopped, Message: "as asked"},
		{State: driver.Ended, Finished: time.Unix(3, 4).UTC(), ExitCode: -1, Cause: driver.CauseLost},
	} {
		if got, err := checkStatus(statusToProto(st)); err != nil || got != st {
			t.Errorf("became %+v, was %+v: %v", got, st, err)
		}
	}
}

// TestChoose: the result is the greatest version that both sides support, or none.
func TestChoose(t *testing.T) {
	for _, c := range []struct{ oldest, newest, want int32 }{
		{1, 1, 1}, {1, 2, 1}, {0, 1, 1}, {0, 9, 1}, {2, 3, 0}, {0, 0, 0}, {-1, 0, 0},
	} {
		v, err := choose(&nusav1.HandshakeRequest{Oldest: c.oldest, Newest: c.newest})
		if v != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("an agent of %d..%d: %d, %v", c.oldest, c.newest, v, err)
		}
	}
}

// TestLines: the number and the length of the log lines are bounded. The line with the
// reason of the end is remembered.
func TestLines(t *testing.T) {
	var log strings.Builder
	l := newLines(slog.New(slog.NewTextHandler(&log, nil)))
	l.read(strings.NewReader(strings.Repeat("z", 100_000) + "\n\x1b[31mred\n\n" + strings.Repeat("again\n", 10_000)))
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) < linesAtOnce || len(lines) > 2*linesAtOnce || len(lines[0]) > 2*maxLine || strings.Contains(log.String(), "\x1b") {
		t.Errorf("%d lines, the first of %d bytes", len(lines), len(lines[0]))
	}
	if got := l.end(); got != "again" || !strings.Contains(log.String(), "lines_left_out") {
		t.Errorf("the last line is %q", got)
	}
	l.read(strings.NewReader("panic: why\n\ngoroutine 1 [running]:\nmain.main()\nexit status 2"))
	if got := l.end(); got != "panic: why" {
		t.Errorf("the telling line is %q", got)
	}
}
