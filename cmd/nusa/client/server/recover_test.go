package server

import (
	"strings"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRecoveryListsWhatItStops: before an operator confirms a recovery of the store, the command prints
// one line for each group that would lose something.
func TestRecoveryListsWhatItStops(t *testing.T) {
	for _, c := range []struct {
		would *nusav1.RecoverResponse
		want  string
	}{
		{&nusav1.RecoverResponse{}, "The regions run nothing that the restored store does not know."},
		{&nusav1.RecoverResponse{
			Lost: []*nusav1.LostWork{
				{Region: "tokyo", Namespace: "default", Job: "api", Group: "web", Instances: 2, JobVersion: 3, StoredVersion: 3},
				{Region: "tokyo", Namespace: "default", Job: "late", Group: "web", Instances: 1, JobVersion: 1},
				{Region: "seoul", Namespace: "ops", Job: "db", Group: "main", JobVersion: 5, StoredVersion: 4},
			},
			LeftOut: 1, Silent: []string{"jakarta", "oslo"},
			Starts: []*nusav1.LostWork{{Region: "seoul", Namespace: "default", Job: "etl", Group: "main", Instances: 2, StoredVersion: 1}},
		}, `What the regions run and the restored store does not know:
  default/api group web in tokyo: 2 instances would stop
  default/late group web in tokyo: 1 instance would stop: the store does not have the job
  ops/db group main in seoul: version 5 would return to version 4
  perhaps more: the regions have not named 1 slot
What the restored store has and the regions do not run, for example because it was stopped since:
  default/etl group main in seoul: 2 instances would start
These regions have not reported yet what they run: jakarta, oslo
After the recovery no region gets a lease until these regions have confirmed it, or ` + "`nusa region lose` was run for them."},
	} {
		if got := strings.Join(whatStops(c.would), "\n"); got != c.want {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
}
