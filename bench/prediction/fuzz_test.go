package prediction

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/topology"
)

// hostile are malformed files of round trips.
var hostile = []string{
	"from,a,b\na,,1\nb,2,\n", "from,a,b\na,,NaN\nb,Inf,\n", "from,a,b\na,,-5\nb,1e308,\n", "from,a,a\na,,1\na,1,\n", "from,a,b\na,,1\na,1,\n",
	"", "from,a\na,\n", "from,a,b,c\na,,1\nb,1,,3,4\n", "\xef\xbb\xbffrom,a,b\r\na,,1\r\nb,2,\r\n", "from,\"a\",\"b\"\n\"a\",,\"1\"\n",
	"from,\"a,b\n", "src,dst,rtt_ms\na,b,10\nb,a,-\n", "src,dst,rtt_ms,min_ms\na,b,10,20\na,b,0,0\n", "src,dst\n", "\x00\x01",
	"1 2\n3 4\n", "0,1e-320\n1,0\n", "from,westeurope,southeastasia\nwesteurope,,2\nsoutheastasia,2,\n", "from,a,b\nb,1,\na,,4000\n# c\n",
	"from,a,b,c,d\na,0,1,2,3\nb,300,0,1,2\nc,1e308,1e-308,0,1\nd,-Inf,nan,+0,0\n", "src,dst,rtt_ms\na,a,1\n", "from,,\n,,1\n",
	"from,a\n" + strings.Repeat("b", 600) + ",1\n", "from," + strings.Repeat("b", 600) + "\n", "from,a,b\na,0," + strings.Repeat("x", 600) + "\n",
	"src,dst,rtt_ms\na," + strings.Repeat("b", 600) + ",1\n", "src,dst,rtt_ms\na,b,1\n" + strings.Repeat("1", 600), "\xff\xfex\x00,\x00a\x00",
}

// FuzzTopology: each format reads a file, or refuses it with an error of one line that
// names the position. The figures of a file that is read are finite.
func FuzzTopology(f *testing.F) {
	for _, text := range hostile {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 2048 {
			return
		}
		name := filepath.Join(t.TempDir(), "rtt.csv")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, format := range []string{"matrix", "edges", "plain"} {
			r, err := Measure(Options{Matrix: name, Format: format, Neighbours: 2, Seed: 1})
			if err != nil {
				if text := err.Error(); len(text) > 700 || strings.Contains(text, "\n") || !strings.Contains(text, "line ") || !strings.Contains(text, name) {
					t.Fatalf("%s: not one clear line: %q", format, text)
				}
				continue
			}
			for what, v := range map[string]float64{
				"median": r.MedianRelativeError, "p90": r.P90RelativeError, "stretch": r.NearestStretch, "within": r.WithinStatedError,
			} {
				if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
					t.Fatalf("%s: %s is %v", format, what, v)
				}
			}
		}
		table, err := topology.ParseTable(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, e := range table.Edges() {
			if e.P50 < 0 || e.P50 > topology.MaxTableRTT || !table.Has(e.From) || !table.Has(e.To) {
				t.Fatalf("a table has %v", e)
			}
		}
	})
}
