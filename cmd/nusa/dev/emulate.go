package dev

import (
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/network"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
	"github.com/nusa-scheduler/nusa/topology/wan"
)

// emulate returns the sockets of each region, and how to end the emulation.
func emulate(o Options) (sockets func(region string) network.Net, end func(), err error) {
	var table *topology.Table
	switch o.WAN {
	case "none":
		return func(string) network.Net { return network.Host() }, func() {}, nil
	case "azure":
		table = wan.Azure()
	default:
		if table, err = readTable(o.WAN); err != nil {
			return nil, nil, err
		}
	}
	for _, r := range o.Regions {
		if !table.Has(r) {
			return nil, nil, fmt.Errorf("--regions: the round-trip table %q has no region %q; it has %s", o.WAN, r, summary(table.Regions()))
		}
	}
	w := wan.New(wan.Config{Table: table})
	return w.Net, w.Close, nil
}

func readTable(path string) (*topology.Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--wan: neither azure nor none nor a readable file: %w", err)
	}
	defer f.Close()
	table, err := topology.ParseTable(f)
	if err != nil {
		return nil, fmt.Errorf("--wan: %s: %w", path, err)
	}
	return table, nil
}

func summary(names []string) string {
	const most = 60
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}

// definition is what the region says about itself at its first contact: known
// Azure names bring their place and labels, others just their name.
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
