package state

import (
	"fmt"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// BenchmarkPlacedRegions asks for a thousand regions after a change of one region.
func BenchmarkPlacedRegions(b *testing.B) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return time.Minute })
	for i := range 1000 {
		name := fmt.Sprintf("r%04d", i)
		st.apply(RegionPrefix+name, &nusav1.Region{ClusterId: name}, int64(1+i))
		st.Regions[name].Session = &Session{}
		st.Regions[name].SetReport(&nusav1.RegionReport{NodesReady: 1}, time.Second, false)
	}
	names, n := st.RegionNames(), 0
	for b.Loop() {
		n++
		r := st.Regions[names[n%len(names)]]
		r.Reports++
		r.Touch()
		PlacedRegions(st, time.Minute)
	}
}

// TestPlacedRegionsNoticeEachChange: a region that has changed gets another pointer, and an
// unchanged one keeps its pointer.
func TestPlacedRegionsNoticeEachChange(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return time.Minute })
	st.apply(RegionPrefix+"oslo", &nusav1.Region{ClusterId: "o"}, 1)
	r := st.Regions["oslo"]
	r.Session = &Session{}
	r.SetReport(&nusav1.RegionReport{NodesReady: 1}, time.Second, false)
	at := func() *place.Region { all, _ := PlacedRegions(st, time.Minute); return all[0] }
	last := at()
	for what, change := range map[string]func(){
		"record": func() { r.Record = &nusav1.Region{ClusterId: "o", Cordoned: true} }, "session": func() { r.Session = nil },
		"report": func() { r.Report = &nusav1.RegionReport{NodesReady: 2} }, "time of the report": func() { r.ReportAt++ },
		"number of reports": func() { r.Reports++ }, "feature level": func() { st.GlobalLevel++ }, "commits": func() { r.Life.CommitBlocked++ },
		"charges": func() {
			r.account.Put(r.reported(), place.Charge{Region: "oslo", Key: "k", Generation: 9, Ask: &place.Ask{}, Count: 1})
		},
		"health": func() { r.Life.Stream++ },
	} {
		if at() != last {
			t.Errorf("before %s: another pointer without a change", what)
		}
		change()
		r.Touch()
		next := at()
		if next == last {
			t.Errorf("%s: the change is not noticed", what)
		}
		last = next
		if what == "session" {
			r.Session = &Session{}
			r.Touch()
			last = at()
		}
	}
}
