package server

import (
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestDocument: the document for programs contains the alarms, and says that no job fits
// any more.
func TestDocument(t *testing.T) {
	for _, c := range []struct {
		alarms []string
		left   int64
		want   string
	}{
		{nil, 7, `{"servers":[{"name":"g1","store":{"jobs":"3","jobs_left":"7"}},{"name":"g2"}]}`},
		{[]string{"the store is full"}, 0, `{"servers":[{"name":"g1","store":{"jobs":"3","jobs_left":"0"}},{"name":"g2"}],"alarms":["the store is full"]}`},
	} {
		n, err := document(&nusav1.TopologyTree{Servers: []*nusav1.GlobalServer{{Name: "g1", Store: &nusav1.StoreUsage{Jobs: 3, JobsLeft: c.left}}, {Name: "g2"}}}, c.alarms)
		if err != nil || string(n.Compact()) != c.want {
			t.Errorf("%s, %v\nwant %s", n.Compact(), err, c.want)
		}
	}
}
