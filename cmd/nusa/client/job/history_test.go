package job

import (
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestHistoryMarksFailedVersions: the notes say which versions failed, and which ran completely.
func TestHistoryMarksFailedVersions(t *testing.T) {
	var out strings.Builder
	writeHistory(&term.Screen{Writer: &out, Width: 80}, &nusav1.JobHistory{Versions: []*nusav1.JobVersion{
		{Version: 4, Failed: "1 of 2 instances failed"},
		{Version: 3, Complete: true, Reverted: &nusav1.Reverted{Version: 2, To: 1}},
		{Version: 2, Failed: "in 1 of 3 regions: osaka: 1 instances failed"},
		{Version: 1},
	}})
	want := `VERSION  SUBMITTED  REPLACED  NOTE
      4  -          -         [1]
      3  -          -         [2]
      2  -          -         [3]
      1  -          -

[1] the present version; failed: 1 of 2 instances failed
[2] version 2 failed: taken back to version 1; ran completely
[3] failed: in 1 of 3 regions: osaka: 1 instances failed
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
