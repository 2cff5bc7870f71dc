package api

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/history"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestPages: a token that no list has returned is refused.
func TestPages(t *testing.T) {
	for token, want := range map[string]bool{
		"": true, "default/api": true, "pay/r-0198a0de-0000-7000-8000-000000000000": true, "@eastus": true, "@eastus\x00default\x00api\x001": true,
		"zzz": false, "2": false, "/": false, "default/": false, "default/A": false, "@": false, "@\x00default\x00api\x001": false, "a/b/c": false,
	} {
		if got := isPage(token); got != want {
			t.Errorf("%q: %v", token, got)
		}
	}
}

// TestAFullPageReleasesTheLock: a page that is full looks for one more job in parts, because no
// other request gets the lock meanwhile.
func TestAFullPageReleasesTheLock(t *testing.T) {
	st := state.New(state.Beginning{}, func() time.Duration { return 0 })
	put := func(name string, labels map[string]string) {
		line, err := proto.Marshal(&nusav1.Job{Spec: &nusav1.JobSpec{Name: name, Labels: labels}})
		if err != nil {
			t.Fatal(err)
		}
		st.History.Put("default/"+name, history.Entry{Line: line, Revision: 1})
		st.Names.Add("default/" + name)
	}
	sea := map[string]string{"team": "sea"}
	put("a", sea)
	for i := range 10_000 {
		put(fmt.Sprintf("b-%05d", i), nil)
	}
	put("c", sea)
	line, err := proto.Marshal(&nusav1.Job{Spec: &nusav1.JobSpec{Name: "d", Labels: sea}, Status: &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_FAILED}})
	if err != nil {
		t.Fatal(err)
	}
	st.History.Put("default/d", history.Entry{Line: line, Revision: 1})
	st.Names.Add("default/d")
	for states, want := range map[string]string{"failed": "d", "complete": "", "complete failed": "d", "": "a c d"} {
		p := page{req: &nusav1.ListJobsRequest{Labels: sea, States: strings.Fields(states)}, limit: 10}
		for !p.add(st) {
		}
		var names []string
		for _, j := range p.jobs {
			names = append(names, j.GetSpec().GetName())
		}
		if got := strings.Join(names, " "); got != want || p.more {
			t.Errorf("the states %q: %q, want %q", states, got, want)
		}
	}
	p, calls := page{req: &nusav1.ListJobsRequest{Labels: sea}, limit: 1}, 1 // at most 128 jobs in each call
	for !p.add(st) {
		calls++
	}
	if calls != 79 || len(p.jobs) != 1 || !p.more || p.last != "default/a" {
		t.Errorf("%d calls found %v, more %t, last %q", calls, p.jobs, p.more, p.last)
	}
}

// TestOverridesOfEarlierVersions: the global tier selects what a region of an earlier version returns.
func TestOverridesOfEarlierVersions(t *testing.T) {
	st := state.New(state.Beginning{}, func() time.Duration { return 0 })
	line, err := proto.Marshal(&nusav1.Job{Spec: &nusav1.JobSpec{Name: "a", Labels: map[string]string{"team": "sea"}}})
	if err != nil {
		t.Fatal(err)
	}
	st.History.Put("default/a", history.Entry{Line: line, Revision: 1})
	for _, c := range []struct {
		states []string
		label  string
		want   int
	}{{nil, "", 2}, {[]string{"stopped"}, "", 2}, {[]string{"scaled"}, "", 0}, {nil, "sea", 1}, {nil, "land", 0}, {[]string{"holding", "stopped"}, "sea", 1}} {
		req := &nusav1.ListOverridesRequest{States: c.states}
		if c.label != "" {
			req.Labels = map[string]string{"team": c.label}
		}
		out := &nusav1.ListOverridesResponse{Overrides: []*nusav1.Override{{Namespace: "default", Job: "a", Stopped: true}, {Namespace: "default", Job: "b", Stopped: true}}}
		if selectOverrides(st, req, out); len(out.GetOverrides()) != c.want {
			t.Errorf("states %v, label %q: %v", c.states, c.label, out.GetOverrides())
		}
	}
}
