package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/topology/wan"
)

// azureFile is the published table as a file; change may alter a cell.
func azureFile(t *testing.T, change func(row, column int, cell string) string) string {
	t.Helper()
	table := wan.AzurePublished()
	var b strings.Builder
	b.WriteString("ms," + strings.Join(table.Regions(), ",") + "\n")
	for i, from := range table.Regions() {
		b.WriteString(from)
		for j, to := range table.Regions() {
			cell := ""
			if d, ok := table.RTT(from, to); ok && i != j {
				cell = fmt.Sprint(d.Seconds() * 1000)
			}
			if change != nil {
				cell = change(i, j, cell)
			}
			b.WriteString("," + cell)
		}
		b.WriteString("\n")
	}
	return file(t, b.String())
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "rtt.csv")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestTopologyOfAzure holds what was reached; plain Vivaldi has a median of
// 0.079, a p90 of 0.42 and a stretch of 1.1 here.
func TestTopologyOfAzure(t *testing.T) {
	name := azureFile(t, nil)
	for seed := range uint64(5) {
		r, err := Topology(TopologyOptions{Matrix: name, Format: "matrix", Neighbours: 16, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", *r)
		if r.MedianRelativeError > 0.035 || r.P90RelativeError > 0.12 || r.NearestStretch > 1.05 {
			t.Errorf("seed %d: median %.3f, p90 %.3f, stretch %.2f", seed, r.MedianRelativeError, r.P90RelativeError, r.NearestStretch)
		}
		// More than the 0.8 that is aimed at, since the measured pairs that tell
		// were chosen for being hard.
		if r.WithinStatedError < 0.75 || r.WithinStatedError > 0.98 {
			t.Errorf("seed %d: %.2f of errors are within the stated one, want 0.8 or more", seed, r.WithinStatedError)
		}
		if r.Regions != 51 || r.MeasuredPairs+r.UnmeasuredPairs != 1228 || r.MeasuredPairs < 51*8 || r.MeasuredPairs > 51*16 || r.RejectedSamples != 0 {
			t.Errorf("seed %d: %+v", seed, *r)
		}
	}
}

// TestTopologyOfDirtyAzure: a share of nonsense is found, and changes little.
func TestTopologyOfDirtyAzure(t *testing.T) {
	bad := []string{"-5", "NaN", "0", "99999", "7000", "inf", "0.01"}
	spoilt := 0
	name := azureFile(t, func(i, j int, cell string) string {
		if (i*51+j)%29 != 11 || cell == "" {
			return cell
		}
		spoilt++
		return bad[spoilt%len(bad)]
	})
	r, err := Topology(TopologyOptions{Matrix: name, Format: "matrix", Neighbours: 16, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d spoilt: %+v", spoilt, *r)
	if r.RejectedSamples < spoilt*9/10 || r.RejectedSamples > spoilt*11/10 {
		t.Errorf("%d of %d spoilt cells rejected: %+v", r.RejectedSamples, spoilt, r.Rejected)
	}
	if r.MedianRelativeError > 0.04 || r.P90RelativeError > 0.15 || r.NearestStretch > 1.1 {
		t.Errorf("median %.3f, p90 %.3f, stretch %.2f", r.MedianRelativeError, r.P90RelativeError, r.NearestStretch)
	}
}

func TestTopologyOfFewRegions(t *testing.T) {
	for _, tc := range []struct {
		name, format, text string
		measured, left     int
		rejected           int
	}{
		{"one region", "matrix", "ms,a\na,0\n", 0, 0, 0},
		{"no regions", "edges", "src,dst,rtt_ms\n", 0, 0, 0},
		{"blank", "matrix", "ms,a,b\na,,\nb,,\n", 0, 0, 0},
		{"all impossible", "edges", "src,dst,rtt_ms,min_ms\na,b,5,6\nb,a,NaN,\n", 0, 0, 2},
		{"one direction", "matrix", "ms,a,b,c\na,,5,\nc,,9,\n", 2, 0, 0},
		{"two parts", "edges", "src,dst,rtt_ms\na,b,5\nc,d,6\ne,e,1\n", 2, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := Topology(TopologyOptions{Matrix: file(t, tc.text), Format: tc.format, Neighbours: 16, Seed: 1})
			if err != nil {
				t.Fatal(err)
			}
			if r.MeasuredPairs != tc.measured || r.UnmeasuredPairs != tc.left || r.RejectedSamples != tc.rejected || r.NearestStretch != 1 {
				t.Errorf("%+v", *r)
			}
			if _, err := json.Marshal(r); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTopologyCommand(t *testing.T) {
	name := azureFile(t, nil)
	run := func(args ...string) (string, error) {
		var out strings.Builder
		c := Command(nil)
		c.SetArgs(append([]string{"topology"}, args...))
		c.SetOut(&out)
		c.SetErr(&out)
		c.SilenceUsage, c.SilenceErrors = true, true
		err := c.ExecuteContext(t.Context())
		return out.String(), err
	}
	out, err := run("--matrix", name, "--neighbours", "4", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var keys map[string]any
	if err := json.Unmarshal([]byte(out), &keys); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"regions", "measured_pairs", "unmeasured_pairs", "median_relative_error", "p90_relative_error", "nearest_stretch", "rejected_samples"} {
		if _, ok := keys[key].(float64); !ok {
			t.Errorf("%s is %v", key, keys[key])
		}
	}
	out, err = run("--matrix", name, "--neighbours", "4")
	if err != nil || !slices.ContainsFunc(strings.Split(out, "\n"), func(l string) bool { return strings.HasPrefix(l, "relative error") }) {
		t.Errorf("table: %v\n%s", err, out)
	}
	twice := file(t, "ms,a,b,a\n")
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{}, "--matrix: no file given"},
		{[]string{"--matrix", name, "--format", "x"}, "--format: \"x\" is not one of"},
		{[]string{"--matrix", name, "--neighbours", "0"}, "--neighbours: 0"},
		{[]string{"--matrix", name, "-o", "x"}, "--output"},
		{[]string{"--matrix", name + "x"}, "--matrix: "},
		{[]string{"--matrix", twice}, twice + `: invalid round-trip table: line 1: region "a" comes twice`},
		{[]string{"--matrix", name, "--format", "edges"}, name + ": invalid round-trip table: line 1: "},
	} {
		if _, err := run(tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v, want %q", tc.args, err, tc.want)
		}
	}
}
