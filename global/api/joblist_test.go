package api

import (
	"fmt"
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
	p, calls := page{req: &nusav1.ListJobsRequest{Labels: sea}, limit: 1}, 1
	for !p.add(st) {
		calls++
	}
	if calls != 3 || len(p.jobs) != 1 || !p.more || p.last != "default/a" {
		t.Errorf("%d calls found %v, more %t, last %q", calls, p.jobs, p.more, p.last)
	}
}
