package agent

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// An order that asks for what this version does not know still names every
// task: what another version started must be found, to be stopped.
func TestOrderThatCannotRunNamesItsTasks(t *testing.T) {
	wire := testOrder("aaaa", 1, "process", nil, func(_ *nusav1.AllocOrder, g *nusav1.Group) {
		g.Tasks["a"] = &nusav1.Task{Driver: "process", Env: map[string]string{"X": "${NUSA_OF_TOMORROW}"}}
	})
	o := readOrder(wire, node{}, false)
	if o.alloc.Ask.Unsupported == "" {
		t.Error("it is accepted")
	}
	if len(o.alloc.Tasks) != 2 {
		t.Errorf("tasks %+v", o.alloc.Tasks)
	}
	for _, task := range o.alloc.Tasks {
		if to := o.tasks[task.Name]; to.driver != "process" || to.task.ID.Alloc != "aaaa" || to.task.ID.Task != task.Name {
			t.Errorf("task %s would be looked for as %+v", task.Name, to)
		}
	}
}

func TestLogStreamsAreBounded(t *testing.T) {
	s := newAllocations(nil)
	for range maxLogs {
		s.logs <- struct{}{}
	}
	if err := s.Logs(nil, nil); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
}
