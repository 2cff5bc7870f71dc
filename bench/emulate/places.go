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
	// stride spreads the first regions over the world. It has no divisor in common with
	// the number of regions in the table.
	stride = 37
	// inside is the round trip between two regions at one place of the table, and apart
	// what each further region there adds to all its round trips.
	inside = 800 * time.Microsecond
	apart  = 150 * time.Microsecond
)

// Place is where an emulated region stands: at a place of the published table of Azure's
// round trips. With more regions than the table has, several share a place.
type Place struct {
	Name     string
	Location *nusav1.Location
	// at is the place in the table, and turn counts the regions there.
	at, turn int
}

// table has the round trips of the published table by position.
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

// Places returns n places, sorted by name. The names begin with a prefix.
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
