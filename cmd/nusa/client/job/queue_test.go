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
	}}, []string{"db", "web"})
	want := "\nGROUP  QUEUE             BEFORE IT  CPU  MEMORY  HIGHER PRIORITY\nweb    3 of 7 groups  12 instances  6.5   3 GiB  8 instances\n"
	if out.String() != want {
		t.Errorf("the table is\n%s\nwant\n%s", out.String(), want)
	}
}
