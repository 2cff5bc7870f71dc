package dev

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/suggest"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/topology"
	"github.com/nusa-scheduler/nusa/topology/wan"
)

// The names of tables that are not files.
const (
	wanAzure = "azure"
	wanNone  = "none"
)

// Table returns the round-trip table that --wan names: "azure", "none" (which is a nil
// table) or a CSV file.
func Table(name string) (*topology.Table, error) {
	switch name {
	case wanNone:
		return nil, nil
	case wanAzure, "":
		return wan.Azure(), nil
	}
	f, err := os.Open(name)
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, fmt.Errorf("--wan %s: neither %s nor %s nor a readable file: %w", name, wanAzure, wanNone, err)
	}
	defer f.Close()
	table, err := topology.ParseTable(f)
	if err != nil {
		return nil, fmt.Errorf("--wan: %s: %w", name, err)
	}
	return table, nil
}

// defaultRegions returns DefaultRegions, or those regions of the file WAN that have a
// measurement.
func (o Options) defaultRegions(table *topology.Table) ([]string, error) {
	if o.WAN == wanAzure || o.WAN == wanNone {
		return DefaultRegions, nil
	}
	measured := map[string]bool{}
	for _, e := range table.Edges() {
		measured[e.From], measured[e.To] = true, true
	}
	var left []string
	regions := slices.DeleteFunc(table.Regions(), func(r string) bool {
		if measured[r] {
			return false
		}
		left = append(left, r)
		return true
	})
	if len(regions) == 0 {
		regions, left = left, nil // no region has a measurement, as in a table of one region
	}
	if len(left) > 0 { // `nusa latency -o csv` also prints regions that are only defined
		o.Logger.Warn("regions without a measurement in the table are left out", "table", o.WAN, "regions", left)
	}
	if len(regions) > maxRegions {
		return nil, fmt.Errorf("--wan: %s has %d regions and at most %d fit one process: name some of them with --regions", o.WAN, len(regions), maxRegions)
	}
	return regions, nil
}

// checkRegions refuses names that are not valid, and names that are missing in the table.
func (o Options) checkRegions(table *topology.Table) error {
	seen := map[string]bool{}
	for _, r := range o.Regions {
		switch {
		case !job.ValidName(r):
			return fmt.Errorf("--regions: %q is not a name of a region: 1 to 63 of a-z, 0-9 and -, starting with a letter; nusa dev --list-regions prints those of the table", r)
		case seen[r]:
			return fmt.Errorf("--regions: %s is named twice", r)
		case table != nil && !table.Has(r):
			return fmt.Errorf("--regions: the round-trip table %q has no region %q%s", o.WAN, r, suggestion(r, table.Regions()))
		}
		seen[r] = true
	}
	if len(o.Regions) > maxRegions {
		return fmt.Errorf("--regions: %d regions, at most %d fit one process", len(o.Regions), maxRegions)
	}
	return o.checkConnected(table)
}

// checkConnected refuses regions that cannot reach the first region, because the global
// server is at the place of the first region.
func (o Options) checkConnected(table *topology.Table) error {
	if table == nil {
		return nil
	}
	first := o.Regions[0]
	unreachable := unreachableFrom(table, o.Regions, first)
	if len(unreachable) == 0 {
		return nil
	}
	hint := "fill in these cells"
	for i, other := range o.Regions {
		if len(unreachableFrom(table, o.Regions, other)) == 0 {
			order := append([]string{other}, slices.Delete(slices.Clone(o.Regions), i, i+1)...)
			hint += ", or begin with another region: --regions " + strings.Join(order, ",")
			break
		}
	}
	return fmt.Errorf("--wan %s: no connection from %s to %s: the global server is beside the first region, %[3]s, and every region connects to it; %s",
		o.WAN, strings.Join(unreachable, " and "), first, hint)
}

// unreachableFrom returns the regions that have no connection to a region.
func unreachableFrom(table *topology.Table, regions []string, to string) []string {
	var out []string
	for _, r := range regions {
		if _, connected := table.RTT(r, to); !connected {
			out = append(out, r)
		}
	}
	return out
}

// maxSuggestions bounds the names that are suggested in place of an unknown name.
const maxSuggestions = 3

// suggestion returns a text that suggests similar names, and says how to list all names.
func suggestion(name string, known []string) string {
	const all = "--list-regions prints all"
	likely := slices.DeleteFunc(slices.Clone(known), func(k string) bool { return nameDistance(name, k) > max(3, len(name)/2) })
	if len(likely) == 0 {
		return ": " + all
	}
	slices.SortStableFunc(likely, func(a, b string) int {
		return cmp.Or(cmp.Compare(nameDistance(name, a), nameDistance(name, b)), cmp.Compare(a, b))
	})
	return fmt.Sprintf(", did you mean %s? %s", strings.Join(likely[:min(len(likely), maxSuggestions)], ", "), all)
}

// nameDistance returns how different a name is from a region's name. It returns 0 if the
// name is the region's place ("singapore") or a part of the region's name ("europe").
// Otherwise it returns the edit distance.
func nameDistance(name, region string) int {
	name = strings.ToLower(name)
	if r, ok := wan.AzureRegion(region); ok && strings.EqualFold(r.Location.Name, name) {
		return 0
	}
	if len(name) > 2 && strings.Contains(region, name) {
		return 0
	}
	return suggest.Distance(name, region)
}
