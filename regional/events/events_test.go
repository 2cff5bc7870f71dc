package events

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// log is a state that commands change.
type log struct {
	*state.State
	index uint64
}

func (l *log) View() *state.View { return l.Snapshot() }

func (l *log) Watch() (*state.View, <-chan struct{}) { return l.Snapshot(), nil }

func (l *log) apply(t *testing.T, c state.Command) {
	t.Helper()
	l.index++
	c.NowUnixNano = int64(time.Hour) + int64(l.index)
	if r := l.Apply(l.index, c); r.Err != nil {
		t.Fatal(r.Err)
	}
}

func newLog(t *testing.T) (*log, Source) {
	l := &log{State: state.New()}
	l.apply(t, state.Command{Bootstrap: &state.Bootstrap{ClusterID: "c-1", Region: "sea"}})
	l.apply(t, state.Command{SetLimits: &state.SetLimits{FeatureLevel: state.EventLevel}})
	for i := range 3 {
		l.apply(t, state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: fmt.Sprint("id", i), Name: fmt.Sprint("n", i), Pool: "p"}}})
	}
	return l, Source{l}
}

// TestEveryKindHasAType: a kind without a type would be an event that nobody can ask for.
func TestEveryKindHasAType(t *testing.T) {
	seen := map[string]bool{}
	for k := state.EventInstanceRunning; k <= state.EventInstanceStarting; k++ {
		name := types[k]
		if name == "" || seen[name] {
			t.Errorf("kind %d has the type %q", k, name)
		}
		seen[name] = true
		if text(&state.Event{Kind: k, Job: "j"}) == "" {
			t.Errorf("%s has no message", name)
		}
	}
	if len(types) != len(seen) {
		t.Error("a type has no kind")
	}
}

// TestEventNamesAllRestarts: an event counts all restarts since the last report, although
// the agent reported only the latest one.
func TestEventNamesAllRestarts(t *testing.T) {
	for _, c := range []struct {
		restarts, added int32
		want            string
	}{
		{0, 0, "g[2] on n, allocation aaaaaaaa, version 2: it exited: code 1"},
		{5, 1, "g[2] on n, allocation aaaaaaaa, version 2, restart 5: it exited: code 1"},
		{5, 3, "g[2] on n, allocation aaaaaaaa, version 2, restarts 3 to 5: it exited: code 1"},
	} {
		got := text(&state.Event{
			Kind: state.EventInstanceFailed, Group: "g", Index: 2, Node: "n", ID: "aaaaaaaabb", Version: 2,
			Restarts: c.restarts, NewRestarts: c.added, Reason: state.ReasonExited, Message: "code 1",
		})
		if got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestMessageOfAnEvent(t *testing.T) {
	c := state.Cluster{ID: "c-1", Region: "sea"}
	job := message(c, 7, &state.Event{UnixNano: 1e9, Kind: state.EventJobSubmitted, Local: true, Namespace: "ns", Job: "web", Version: 3})
	if job.GetSubject() != "ns/web@sea" || job.GetNamespace() != "ns" || job.GetRegion() != "sea" || job.GetNumber() != 7 ||
		job.GetLog() != "c-1" || job.GetToken() != "c-1-7" || job.GetTime().GetSeconds() != 1 || job.GetMessage() != "version 3" {
		t.Errorf("%v", job)
	}
	if node := message(c, 8, &state.Event{Kind: state.EventNodeLost, Node: "n1", Nano: 15e8}); node.GetSubject() != "n1" || node.GetMessage() != "silent for 1.5s" {
		t.Errorf("%v", node)
	}
	if region := message(c, 9, &state.Event{Kind: state.EventRegionRecovered, Version: 2}); region.GetSubject() != "sea" {
		t.Errorf("%v", region)
	}
}

// TestResumeAfterAToken: a token of this log continues. Any other says that there is a gap.
func TestResumeAfterAToken(t *testing.T) {
	l, s := newLog(t)
	for token, want := range map[string]uint64{"c-1-0": 0, "c-1-2": 2, "c-1-3": 3} {
		if n, gap := s.Resume(token); n != want || gap != nil {
			t.Errorf("%s: %d, %v", token, n, gap)
		}
	}
	for _, token := range []string{"c-2-2", "c-1-4", "c-1-x", "c-1/1/7-2", "none-0", "c-1-99999999999999999999"} {
		n, gap := s.Resume(token)
		if n != 3 || !gap.GetReset_() || gap.GetToken() != "c-1-3" || gap.GetMissed() != 0 {
			t.Errorf("%s: %d, %v", token, n, gap)
		}
	}
	for i := range state.MaxEvents {
		l.apply(t, state.Command{CordonNode: &state.CordonNode{ID: "id0", Cordon: i%2 == 0}})
	}
	n, gap := s.Resume("c-1-1")
	if n != 3 || gap.GetMissed() != 2 || gap.GetToken() != "c-1-3" {
		t.Errorf("after a removed event: %d, %v", n, gap)
	}
	if n, gap := s.Since(time.Unix(0, 0)); n != 3 || !gap.GetReset_() {
		t.Errorf("since a time before the oldest event: %d, %v", n, gap)
	}
	if n, gap := s.Since(time.Now()); n != s.Last() || gap != nil {
		t.Errorf("since now: %d, %v", n, gap)
	}
}

func TestAfterIsBounded(t *testing.T) {
	l, s := newLog(t)
	list, missed, err := s.After(t.Context(), 1, 1)
	if len(list) != 1 || list[0].GetNumber() != 2 || missed != 0 || err != nil {
		t.Errorf("%v, %d, %v", list, missed, err)
	}
	for i := range state.MaxEvents {
		l.apply(t, state.Command{CordonNode: &state.CordonNode{ID: "id0", Cordon: i%2 == 0}})
	}
	list, missed, _ = s.After(t.Context(), 1, 5)
	if len(list) != 5 || list[0].GetNumber() != 4 || missed != 2 {
		t.Errorf("%v, %d", list, missed)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.After(ctx, 1, 5); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestPageHasTheTypes: the page about events names the type of every event of a region, once, and no other.
func TestPageHasTheTypes(t *testing.T) {
	page, err := os.ReadFile("../../docs/design/events.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "\n### Of a region\n")
	_, table, _ := strings.Cut(rest, "\n|---|")
	table, _, _ = strings.Cut(table, "\n## ")
	var named []string
	for _, found := range regexp.MustCompile("`([a-z_]+\\.[a-z_]+)`").FindAllStringSubmatch(table, -1) {
		named = append(named, found[1])
	}
	slices.Sort(named)
	if want := slices.Sorted(maps.Values(types)); !slices.Equal(named, want) {
		t.Errorf("docs/design/events.md names %v, want %v", named, want)
	}
}
