package global

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestLastingProblems: what holds for a moment is no alarm, and what begins again counts from the start.
func TestLastingProblems(t *testing.T) {
	var p problems
	for _, step := range []struct {
		at    time.Duration
		found []string
		want  []string
	}{
		{0, []string{"a"}, nil},
		{10 * time.Second, []string{"a", "b"}, []string{"a"}},
		{15 * time.Second, []string{"b"}, nil},
		{20 * time.Second, []string{"a", "b"}, []string{"b"}},
	} {
		if got := p.lasting(step.at, 10*time.Second, step.found); !slices.Equal(got, step.want) {
			t.Errorf("at %s: %q, want %q", step.at, got, step.want)
		}
	}
}

// withMember is a store with a member that does not run.
type withMember struct{ neverFree }

func (withMember) Usage(context.Context) (store.Usage, error) { return store.Usage{}, nil }

func (withMember) Missing(_ context.Context, running []string) ([]string, error) {
	if slices.Contains(running, "g3") {
		return nil, nil
	}
	return []string{"the member of g3 is missing"}, nil
}

// TestServersOfOneNameAndLostMembersAreShown: two servers with one name, and a lost member of the
// store, each cause an alarm and an event. The alarm ends by itself.
func TestServersOfOneNameAndLostMembersAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		change := func(c *Config) {
			c.Clock = func() time.Duration { return time.Since(start) }
			full := &withMember{}
			full.Store = c.Store
			c.Store = full
		}
		s := f.start(t, "g1", change)
		twin := f.start(t, "g2", change, func(c *Config) { c.Name = "g1" })
		alarms := func(words ...string) func(*nusav1.InfoResponse) bool {
			return func(i *nusav1.InfoResponse) bool {
				missing := slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(strings.Join(i.GetAlarms(), "\n"), w) })
				return i.GetLeader() && len(i.GetAlarms()) == len(words) && !missing
			}
		}
		waitInfo(t, s, "active with two alarms", alarms("global servers at g1:7600 and g2:7600 have one name, g1", "the member of g3 is missing"))
		twin.stop()
		third := f.start(t, "g3", change)
		waitInfo(t, s, "active without an alarm", alarms())
		third.stop()
		s.stop()
	})
}
