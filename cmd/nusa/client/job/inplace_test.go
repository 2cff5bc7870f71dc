package job

import (
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestInPlaceText(t *testing.T) {
	for want, all := range map[string][]*nusav1.InPlaceChange{
		"":                           nil,
		"in place: web":              {{Group: "web", Instances: 3}},
		"in place: db, web (3 of 4)": {{Group: "db", Instances: 1}, {Group: "web", Instances: 3, Started: 1}},
	} {
		if got := inPlaceText(all); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
