package replay

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/golden"
)

func extract(t *testing.T) []Request {
	t.Helper()
	out, err := ReadFile("testdata/azure-vm.csv")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestReplayOfAnExtract replays an extract of a trace of virtual machines through the
// placer, once with enough capacity and once with too little. No region exceeds its
// capacity, no required bound is broken, nothing moves, and no job that fits waits for
// longer than two reports.
func TestReplayOfAnExtract(t *testing.T) {
	var out strings.Builder
	for _, regions := range []int{5, 20} {
		for _, load := range []float64{0.7, 0.95, 1.3} {
			o := Options{Regions: regions, Load: load, Report: 5 * time.Second}
			r, err := Run(t.Context(), extract(t), o)
			if err != nil {
				t.Fatal(err)
			}
			if r.WorstDemand > 1 || r.NearBroken > 0 || r.Moves > 0 || r.MissedS > 2*o.Report.Seconds() {
				t.Errorf("%d regions, load %g: %+v", regions, load, r)
			}
			r.DecidedPerS = 0 // differs from run to run
			text, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(&out, strings.ReplaceAll(string(text), `,"`, ",\n "+`"`))
		}
	}
	golden.File(t, "testdata/result.txt", out.String())
}

func TestRead(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	fmt.Fprint(z, "arrival_s,batch_id,cpu_cores,memory_gb,duration_min_s,duration_max_s,censored\n1800100,2,2,3.5,300,900,0\n1800000,1,1,0.75,900,1200,1\n")
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text string
		want []Request
		err  string
	}{
		"machines, compressed": {text: packed.String(), want: []Request{
			{Batch: "1", CPUMilli: 1000, MemoryBytes: 3 << 28},
			{Arrival: 100 * time.Second, Batch: "2", CPUMilli: 2000, MemoryBytes: 7 << 29, Lasts: 900 * time.Second},
		}},
		"pods": {text: "name,cpu_milli,memory_mib,num_gpu,creation_time,deletion_time\na,12000,16384,1,5,30\nb,0,1,0,6,7\nc,1,1,0,7,\n", want: []Request{
			{CPUMilli: 12000, MemoryBytes: 16 << 30, Lasts: 25 * time.Second}, {Arrival: 2 * time.Second, CPUMilli: 1, MemoryBytes: 1 << 20},
		}},
		"a log of jobs": {text: "; Version: 2\n 1 10 0 60 2 -1 -1\n", want: []Request{
			{Batch: "1", CPUMilli: 1000, MemoryBytes: 1 << 30, Lasts: time.Minute}, {Batch: "1", CPUMilli: 1000, MemoryBytes: 1 << 30, Lasts: time.Minute},
		}},
		"another table": {text: "a,b\n1,2\n", err: "no known trace has the columns a,b: known are arrival_s,batch_id,cpu_cores,memory_gb,duration_max_s,censored and cpu_milli,memory_mib,creation_time,deletion_time"},
		"nothing":       {err: "the trace is empty"},
		"no rows":       {text: "cpu_milli,memory_mib,creation_time,deletion_time\n", err: "the trace has no requests"},
		"no number":     {text: "cpu_milli,memory_mib,creation_time,deletion_time\nx,1,1,1\n", err: `line 2: "x" is no number`},
		"a short line":  {text: ";\n1 2\n", err: "line 2: 2 fields"},
	} {
		got, err := Read(strings.NewReader(c.text))
		if !slices.Equal(got, c.want) || c.err != "" && (err == nil || err.Error() != c.err) || c.err == "" && err != nil {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestOptions(t *testing.T) {
	good := Options{Regions: 5, Load: 0.9, Report: time.Second}
	for want, change := range map[string]func(*Options){
		"":                           func(*Options) {},
		"--regions: 0 is not 1":      func(o *Options) { o.Regions = 0 },
		"--load: 0 is not 0.01..10":  func(o *Options) { o.Load = 0 },
		"--report: 0s is not 100ms":  func(o *Options) { o.Report = 0 },
		"--report: 2h0m0s is not 10": func(o *Options) { o.Report = 2 * time.Hour },
	} {
		o := good
		change(&o)
		if err := o.Validate(); (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}
