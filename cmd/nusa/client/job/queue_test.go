package job

import (
	"bytes"
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestQueueTable: the status of a job shows what stands before its waiting groups.
func TestQueueTable(t *testing.T) {
	var out bytes.Buffer
	writeQueue(&term.Screen{Writer: &out, Width: 80}, &nusav1.JobStatus{Groups: map[string]*nusav1.GroupStatus{
		"web": {Queue: &nusav1.QueuePlace{Position: 3, Groups: 7, Higher: 8, Earlier: 4, Asked: &nusav1.Resources{CpuMilli: 6500, MemoryBytes: 3 << 30}}},
		"db":  {},
		"job": {GlobalQueue: &nusav1.QueuePlace{Position: 1, Groups: 7}},
	}}, []string{"db", "job", "web"})
	want := "\nGROUP  QUEUE             BEFORE IT  CPU  MEMORY  HIGHER PRIORITY\njob    1 of 7 groups   0 instances    0     0 B\n" +
		"web    3 of 7 groups  12 instances  6.5   3 GiB  8 instances\n"
	if out.String() != want {
		t.Errorf("the table is\n%s\nwant\n%s", out.String(), want)
	}
}

// TestQueueText: a list and an explanation show the place in a queue, too.
func TestQueueText(t *testing.T) {
	first, third := &nusav1.QueuePlace{Position: 1, Groups: 7}, &nusav1.QueuePlace{Position: 3, Groups: 7, Higher: 8, Earlier: 1, Asked: &nusav1.Resources{CpuMilli: 6500, MemoryBytes: 3 << 30}}
	status := &nusav1.JobStatus{Groups: map[string]*nusav1.GroupStatus{"web": {Queue: third}, "db": {GlobalQueue: first}, "x": {}}}
	if got := queueText(status); got != "1 of 7" {
		t.Errorf("%q", got)
	}
	if got := queueText(&nusav1.JobStatus{}); got != "" {
		t.Errorf("%q", got)
	}
	for want, q := range map[string]*nusav1.QueuePlace{
		"": nil, "1 of 7 groups": first, "3 of 7 groups; before it 9 instances, which ask for 6.5 CPU and 3 GiB; 8 instances with a higher priority": third,
	} {
		if got := beforeText(q); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
