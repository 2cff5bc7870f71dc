package placer

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestDestinationsOfACutOffRegion: a status names the region where instances would move, or
// says why none takes them.
func TestDestinationsOfACutOffRegion(t *testing.T) {
	for name, c := range map[string]struct {
		others []string
		due    time.Duration
		moves  bool
		full   bool
		stays  string
		want   string
	}{
		"later":           {[]string{"seoul"}, 40 * time.Second, true, false, "", "would move to seoul in 40s unless jakarta returns: disconnect.region.after is 100s"},
		"now":             {[]string{"seoul"}, 0, true, false, "", "would move unless jakarta returns: disconnect.region.after is 100s"},
		"no other region": {nil, 40 * time.Second, true, false, "", "would move in 40s unless jakarta returns: disconnect.region.after is 100s; now no other region takes it"},
		"no room":         {[]string{"seoul"}, 40 * time.Second, true, true, "", "would move in 40s unless jakarta returns: disconnect.region.after is 100s; now no other region takes it, 1 region: no room for another instance: seoul"},
		"due":             {nil, 0, true, false, "due to move, but no other region takes it", "due to move, but no other region takes it"},
		"never":           {[]string{"seoul"}, 0, false, false, "", "would move unless jakarta returns: disconnect.region.after is 100s"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newLostJobs(t, 1, c.others...)
			k := state.JobKey{Namespace: "default", Name: "job-00000"}
			p.st.Lock()
			if c.full {
				p.st.Regions["seoul"].SetReport(&nusav1.RegionReport{NodesReady: 3, SlotsRevision: p.st.Revision}, 0, false)
			}
			j, failover := p.st.Jobs[k], &state.Failover{Slots: map[string]state.SlotFailover{}}
			for s := range j.Slots.All() {
				failover.Slots[s.Key()] = state.SlotFailover{Moves: c.moves, Due: p.clock + c.due, Message: "would move unless jakarta returns: disconnect.region.after is 100s"}
			}
			if c.stays != "" {
				for key, f := range failover.Slots {
					f.Message = c.stays
					failover.Slots[key] = f
				}
			}
			p.st.Regions["jakarta"].Failover = failover
			status := j.Status(p.st.Sight())
			p.st.Unlock()
			AddDestinations(p.st, k, status)
			unknown := status.GetGroups()["web"].GetUnknown()
			if len(unknown) != 1 || unknown[0].GetMessage() != c.want {
				t.Errorf("%v, want %q", unknown, c.want)
			}
		})
	}
}
