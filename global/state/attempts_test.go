package state

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestAttempts: answers change what is stored about their instances only. A later version or run replaces the
// record, and it goes with the job.
func TestAttempts(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.Lock()
	defer st.Unlock()
	k := JobKey{"default", "api"}
	spec := testJob("api", 4)
	st.apply(k.recordKey(), &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1}}, 5)
	at := func(index, failures int32) *nusav1.InstanceAttempts {
		return &nusav1.InstanceAttempts{Index: index, Failures: failures}
	}
	slot := region.Slot{Namespace: "default", Job: "api", Group: "web", To: 4, Region: "r", Desired: region.DesiredRun, JobVersion: 1, Run: 5}
	put := func(s region.Slot, from, to int, used ...*nusav1.InstanceAttempts) string {
		t.Helper()
		tx := NewTx(st)
		if err := PutAttempts(tx, &s, from, to, used); err != nil {
			t.Fatal(err)
		}
		for _, ch := range tx.changes {
			st.apply(ch.key, ch.msg, 9)
		}
		text := ""
		for _, a := range attemptsFor(st, &s) {
			text += fmt.Sprintf("%d:%d ", a.GetIndex(), a.GetFailures())
		}
		return fmt.Sprintf("%d writes, %s", len(tx.changes), text)
	}
	second, again := slot, slot
	second.JobVersion, again.Run = 2, 6
	part := slot
	part.From, part.To = 1, 2
	many := []*nusav1.InstanceAttempts{{Index: 3, Failures: 1, ByRule: make([]int32, 17)}, {Index: 3, Failures: -1}}
	for i, c := range []struct{ got, want string }{
		{put(slot, 0, 4), "0 writes, "},
		{put(slot, 0, 2, at(0, 1), at(1, 2), at(2, 9)), "1 writes, 0:1 1:2 "},
		{put(slot, 1, 4, at(3, 4)), "1 writes, 0:1 3:4 "},
		{put(part, 1, 2, at(1, 5)), "1 writes, 1:5 "},
		{put(slot, 3, 4, many...), "1 writes, 0:1 1:5 "},
		{put(second, 0, 4), "1 writes, "},
		{put(slot, 0, 4, at(2, 1)), "0 writes, "}, // of an earlier version
		{put(second, 0, 4, at(2, 1)), "1 writes, 2:1 "},
		{put(again, 0, 4, at(1, 1)), "1 writes, 1:1 "},
	} {
		if c.got != c.want {
			t.Errorf("step %d: %s, want %s", i, c.got, c.want)
		}
	}
	tx := NewTx(st)
	if err := tx.DeleteJob(k); err != nil {
		t.Fatal(err)
	}
	for _, ch := range tx.changes {
		if ch.key == k.attemptsKey("web") && ch.msg == nil {
			st.apply(ch.key, nil, 10)
		}
	}
	if len(st.attempts) != 0 {
		t.Errorf("left: %v", st.attempts)
	}
	if m, ok := newRecord(k.attemptsKey("web")).(*nusav1.AttemptsRecord); !ok || !proto.Equal(m, &nusav1.AttemptsRecord{}) {
		t.Error("a stored record is not read")
	}
}
