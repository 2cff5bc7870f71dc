package reconcile

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/health"
)

// TestStoredTaskKeepsItsKeys: the JSON of a task is stored on disk, so its keys must stay
// the same if the Go fields are renamed.
func TestStoredTaskKeepsItsKeys(t *testing.T) {
	task := TaskActual{Phase: Ended, Run: 3, Finished: epoch, ExitCode: 1, Signal: 9, Reason: ReasonUnhealthy, Message: "m", Final: true,
		Restarts: []time.Time{epoch}, Health: health.Unhealthy, UnhealthyReason: "why", Lapse: ReasonRegionLease, RunsSinceHealthy: 2, StartUncertain: true}
	const want = `{"Phase":5,"Run":3,"Finished":"1970-01-01T00:00:00Z","ExitCode":1,"Signal":9,"Reason":"unhealthy","Message":"m","Final":true,` +
		`"Restarts":["1970-01-01T00:00:00Z"],"Health":2,"Sick":"why","Lapse":"region_lease","Vain":2,"Doubt":true}`
	got, err := json.Marshal(task)
	if err != nil || string(got) != want {
		t.Errorf("%v\n got %s\nwant %s", err, got, want)
	}
	var back TaskActual
	if err := json.Unmarshal(got, &back); err != nil || back.UnhealthyReason != "why" || back.RunsSinceHealthy != 2 || !back.StartUncertain {
		t.Errorf("%v: read back as %+v", err, back)
	}
}
