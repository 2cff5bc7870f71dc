package emulate

import (
	"fmt"
	"slices"
	"sync"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology/wan"
)

const (
	// stride spreads the first regions over the world. The stride has no common divisor
	// with the number of regions in the table.
	stride = 37
	// inside is the round trip between two regions at the same place of the table. The
	// n-th further region at a place adds n times apart to all its round trips.
	inside = 800 * time.Microsecond
	apart  = 150 * time.Microsecond
)

// Place is the name and location of an emulated region. The locations come from the
// published table of Azure's round trips. If there are more regions than locations in the
// table, several regions share a location.
type Place struct {
	Name     string
	Location *nusav1.Location
	// at is the index of the location in the table. turn numbers the regions that share
	// the location, from 0.
	at, turn int
}

// table returns the round trips of the published table, by the indexes of both ends.
var table = sync.OnceValue(func() [][]time.Duration {
	all, rtts := wan.AzureRegions(), wan.Azure()
	out := make([][]time.Duration, len(all))
	for i := range all {
		out[i] = make([]time.Duration, len(all))
		for j := range all {
			if i != j {
				out[i][j], _ = rtts.RTT(all[i].Name, all[j].Name)
			}
		}
	}
	return out
})

// Places returns n places, sorted by name. All names begin with the prefix.
func Places(prefix string, n int) []Place {
	all := wan.AzureRegions()
	out := make([]Place, n)
	for i := range out {
		p := Place{at: i * stride % len(all), turn: i / len(all)}
		from := all[p.at]
		p.Name = prefix + from.Name
		if p.turn > 0 {
			p.Name += fmt.Sprintf("-%02d", p.turn)
		}
		p.Location = &nusav1.Location{
			Latitude: from.Location.Latitude, Longitude: from.Location.Longitude, Name: from.Location.Name,
		}
		out[i] = p
	}
	slices.SortFunc(out, func(a, b Place) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return out
}

// RTT returns the round trip between two places.
func (p *Place) RTT(q *Place) time.Duration {
	return inside + table()[p.at][q.at] + apart*time.Duration(p.turn+q.turn)
}
