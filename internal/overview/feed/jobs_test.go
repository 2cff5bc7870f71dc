package feed

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/overview"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// changes is a JobSource whose jobs change as a test says.
type changes struct {
	present map[string]string // message by key
	noted   []Job
}

func (c *changes) set(key, message string) {
	c.present[key] = message
	c.noted = append(c.noted, Job{Key: key})
}

func (c *changes) remove(key string) {
	delete(c.present, key)
	c.noted = append(c.noted, Job{Key: key, Gone: true})
}

func (*changes) Follow(bool) {}

func (*changes) After(string, int) ([]Job, string) { return nil, "" }

func (c *changes) Changed(int) ([]Job, bool) {
	out := c.noted
	c.noted = nil
	return out, false
}

func (*changes) Facts(string) (Facts, bool) { return Facts{}, true }

func (c *changes) Line(key string) *nusav1.OverviewJob {
	if message, ok := c.present[key]; ok {
		return &nusav1.OverviewJob{Message: message}
	}
	return nil
}

// TestJobsThatComeAgain: a job that was removed and created again is shown as it is now.
func TestJobsThatComeAgain(t *testing.T) {
	source, now := &changes{present: map[string]string{}}, time.Duration(0)
	j := newJobs(source, func() time.Duration { return now })
	s := j.add(overview.Filter{Limit: 10})
	a, b := overview.Key("default", "a", ""), overview.Key("default", "b", "")
	var was overview.Section
	shown := func() (out string) {
		t.Helper()
		now += time.Minute
		section, _, err := j.present(t.Context(), s, time.Second, was, nil)
		if err != nil {
			t.Fatal(err)
		}
		for was = section; len(section) > 0; section = section[1:] {
			out += value[*nusav1.OverviewJob](section[0]).GetMessage() + " "
		}
		return out
	}
	source.set(a, "first")
	if got := shown(); got != "first " {
		t.Error(got)
	}
	source.remove(a)
	source.set(b, "other")
	source.set(a, "second")
	if got := shown(); got != "second other " {
		t.Error(got)
	}
}
