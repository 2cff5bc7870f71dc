package rest

import (
	"strings"
	"testing"
)

// TestReadJob: a job in a field "spec", as responses have it, is refused with what to send.
func TestReadJob(t *testing.T) {
	const job = `{"name": "api", "groups": {"web": {"tasks": {"main": {"driver": "process", "config": {"command": "sleep"}}}}}}`
	if _, faults := readJob([]byte(job), false); len(faults) > 0 {
		t.Fatalf("a job: %v", faults)
	}
	_, faults := readJob([]byte(`{"spec": `+job+`, "version": "1"}`), false)
	if len(faults) == 0 || !strings.Contains(faults[0].GetMessage(), "send only the value of spec") {
		t.Errorf("a job in a field spec: %v", faults)
	}
}
