package dev

import (
	"maps"

	"github.com/nusa-scheduler/nusa/internal/network"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
	"github.com/nusa-scheduler/nusa/topology/wan"
)

// emulation is the network of a federation. Without a table of round trips wan is nil, and
// the federation uses the host's network.
type emulation struct{ wan *wan.WAN }

func emulate(table *topology.Table) emulation {
	if table == nil {
		return emulation{}
	}
	return emulation{wan.New(wan.Config{Table: table})}
}

// sockets returns the sockets of a region.
func (e emulation) sockets(region string) network.Net {
	if e.wan == nil {
		return network.Host()
	}
	return e.wan.Net(region)
}

// change replaces the table of round trips.
func (e emulation) change(table *topology.Table) {
	if e.wan != nil {
		e.wan.SetTable(table)
	}
}

// cutter returns functions that cut a region off from all others and connect it again. They
// are nil on the host's network, which cannot be cut.
func (e emulation) cutter(regions []string) (cut, heal func(region string)) {
	if e.wan == nil {
		return nil, nil
	}
	each := func(change func(a, b string)) func(string) {
		return func(region string) {
			for _, other := range regions {
				if other != region {
					change(region, other)
				}
			}
		}
	}
	return each(e.wan.Cut), each(e.wan.Heal)
}

// end ends the emulation.
func (e emulation) end() {
	if e.wan != nil {
		e.wan.Close()
	}
}

// definition returns the definition of a region. A region of Azure has a location and
// labels. Other regions have only a name.
func definition(name string) *nusav1.RegionDefinition {
	def := &nusav1.RegionDefinition{Name: name}
	if r, ok := wan.AzureRegion(name); ok {
		def.Labels = maps.Clone(r.Labels)
		if r.Location != nil {
			def.Location = &nusav1.Location{Latitude: r.Location.Latitude, Longitude: r.Location.Longitude}
		}
	}
	return def
}
