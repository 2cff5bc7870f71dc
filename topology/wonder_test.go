package topology

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// openData finds a measured data set that may be read but not committed.
func openData(t *testing.T, name string) *csv.Reader {
	t.Helper()
	dir := os.Getenv("NUSA_DATA")
	if dir == "" {
		for up := "."; len(up) < 64; up = filepath.Join("..", up) {
			if found := filepath.Join(up, "shared", "data"); exists(found) {
				dir = found
				break
			}
		}
	}
	f, err := os.Open(filepath.Join(dir, filepath.FromSlash(name)))
	if err != nil {
		t.Skipf("data set %s is not here: set NUSA_DATA to the folder of data sets", name)
	}
	t.Cleanup(func() { f.Close() })
	return csv.NewReader(f)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// WonderNetwork's table of 213 cities has locations that are wrong: counted
// elsewhere, 117 directed pairs are faster than light in fibre, and 31 % of all
// gain over a tenth by one relay.
func TestCheckWonder(t *testing.T) {
	cities, err := openData(t, "wonder-rtt/metadata.csv").ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	rows, err := openData(t, "wonder-rtt/matrix.csv").ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	number := func(s string) float64 {
		x, err := strconv.ParseFloat(s, 64)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	var regions []Region
	for _, c := range cities[1:] {
		regions = append(regions, Region{Name: c[1] + " " + c[0], Location: &Location{Latitude: number(c[3]), Longitude: number(c[4])}})
	}
	var edges []Edge
	for i, row := range rows {
		for j, cell := range row {
			if d := time.Duration(number(cell) * float64(msec)); i != j && d > 0 {
				edges = append(edges, Edge{From: regions[i].Name, To: regions[j].Name, Source: Measured, State: OK, P50: d, P90: d, P99: d, Samples: 1})
			}
		}
	}
	r := Check(NewView(regions, edges), CheckOptions{Limit: 10})
	t.Logf("%d pairs\n%s", len(edges), r)
	if share := float64(r.Violations.Total) / float64(len(edges)); share < 0.29 || share > 0.33 {
		t.Errorf("%.1f %% gain over 10 %% by one relay, want 31", share*100)
	}
	if r.Impossible.Total != 117 || len(r.Suspects) == 0 || r.Suspects[0].Region != "La Ceiba 177" {
		t.Errorf("%d edges are faster than light, want 117, nearly all of them for one city: %v", r.Impossible.Total, r.Suspects)
	}
}
