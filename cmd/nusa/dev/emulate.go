package dev

import (
	"maps"

	"github.com/nusa-scheduler/nusa/internal/network"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
	"github.com/nusa-scheduler/nusa/topology/wan"
)

// emulate returns the sockets of each region, a function that changes the round trips, and a
// function that ends the emulation. Without a table the sockets are those of the host.
func emulate(table *topology.Table) (sockets func(region string) network.Net, change func(*topology.Table), end func()) {
	if table == nil {
		return func(string) network.Net { return network.Host() }, func(*topology.Table) {}, func() {}
	}
	w := wan.New(wan.Config{Table: table})
	return w.Net, w.SetTable, w.Close
}

// definition returns the region's own definition: Azure regions have a location and
// labels, others only a name.
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
