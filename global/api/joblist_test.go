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
