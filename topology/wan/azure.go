package wan

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nusa-scheduler/nusa/topology"
)

// The embedded files. data/ATTRIBUTION.md names their sources.
var (
	//go:embed data/azure_p50_2025-06.csv
	azureTable []byte
	//go:embed data/azure_regions.csv
	azureRegions []byte
)

// AzurePublished returns the published table of median round trips between Azure regions
// of June 2025, with its blanks. It has 51 regions under their short names, for example
// "southeastasia".
func AzurePublished() *topology.Table { return azure().published }

// Azure returns AzurePublished with its 108 blanks filled: by the value of the reverse
// direction, or else by an estimate from locations.
func Azure() *topology.Table { return azure().filled }

// AzureRegion returns the region of the table with a short name, with its location and
// labels. The labels are provider, continent (africa, asia, europe, north-america,
// oceania, south-america), geography (Azure's word in lower case with dashes), country
// (ISO 3166, lower case) and jurisdiction ("eu" for member states, otherwise the country).
func AzureRegion(name string) (topology.Region, bool) {
	i, ok := slices.BinarySearchFunc(azure().regions, name, func(r topology.Region, name string) int {
		return strings.Compare(r.Name, name)
	})
	if !ok {
		return topology.Region{}, false
	}
	return cloneRegion(azure().regions[i]), true
}

// AzureRegions returns all regions of the table, sorted by name.
func AzureRegions() []topology.Region {
	all := slices.Clone(azure().regions)
	for i := range all {
		all[i] = cloneRegion(all[i])
	}
	return all
}

func cloneRegion(r topology.Region) topology.Region {
	labels := make(map[string]string, len(r.Labels))
	for k, v := range r.Labels {
		labels[k] = v
	}
	location := *r.Location
	r.Labels, r.Location = labels, &location
	return r
}

type azureData struct {
	published, filled *topology.Table
	regions           []topology.Region
}

// azure reads the embedded files once. A test checks that the files are well formed, so an
// error means a broken build.
var azure = sync.OnceValue(func() azureData {
	data, err := readAzure()
	if err != nil {
		panic(fmt.Sprintf("wan: embedded Azure data: %v", err))
	}
	return data
})

func readAzure() (azureData, error) {
	table, err := topology.ParseTable(bytes.NewReader(azureTable))
	if err != nil {
		return azureData{}, err
	}
	rows, err := csv.NewReader(bytes.NewReader(azureRegions)).ReadAll()
	if err != nil {
		return azureData{}, err
	}
	var data azureData
	short := make(map[string]string, len(rows))
	locations := make(map[string]topology.Location, len(rows))
	for _, row := range rows[1:] {
		region, err := readAzureRegion(row)
		if err != nil {
			return azureData{}, err
		}
		data.regions = append(data.regions, region)
		short[row[1]] = region.Name
		locations[region.Name] = *region.Location
	}
	slices.SortFunc(data.regions, func(a, b topology.Region) int { return strings.Compare(a.Name, b.Name) })
	data.published, err = table.Rename(func(long string) string { return short[long] })
	if err != nil {
		return azureData{}, err
	}
	data.filled = data.published.Fill(func(name string) (topology.Location, bool) {
		l, ok := locations[name]
		return l, ok
	})
	return data, nil
}

// readAzureRegion reads a row with the columns region, display_name, latitude, longitude,
// place, geography, country, continent and jurisdiction.
func readAzureRegion(row []string) (topology.Region, error) {
	latitude, err := strconv.ParseFloat(row[2], 64)
	if err != nil {
		return topology.Region{}, fmt.Errorf("region %s: latitude: %w", row[0], err)
	}
	longitude, err := strconv.ParseFloat(row[3], 64)
	if err != nil {
		return topology.Region{}, fmt.Errorf("region %s: longitude: %w", row[0], err)
	}
	return topology.Region{
		Name:     row[0],
		Location: &topology.Location{Latitude: latitude, Longitude: longitude, Name: row[4]},
		Labels: map[string]string{
			"provider":     "azure",
			"geography":    strings.ReplaceAll(strings.ToLower(row[5]), " ", "-"),
			"country":      row[6],
			"continent":    row[7],
			"jurisdiction": row[8],
		},
	}, nil
}
