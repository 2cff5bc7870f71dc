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

func TestFlags(t *testing.T) {
	dir := t.TempDir()
	for args, want := range map[string]string{
		"--nodes 0":                          "--nodes: 0 is not 1..20000",
		"--jobs 0":                           "--jobs: 0 is not 1..1000000",
		"--count -1":                         "--count: -1 is not 1..1000000",
		"--concurrency 0":                    "--concurrency: 0 is not 1..4096",
		"--connections 65":                   "--connections: 65 is not 1..64",
		"--servers 2":                        "--servers: 2 is not 1 or 3",
		"--rate -1":                          "--rate: -1 is not 0..100000",
		"--rate 5 --stream":                  "--rate: is for unary calls, so it does not go with --stream",
		"--timeout 0s":                       "--timeout: 0s is not more than 0",
		"--idle -1s":                         "--idle: -1s is less than 0",
		"--jobs 1000000 --count 3":           "--jobs, --count: 3000000 instances, at most 2000000",
		"--nodes 1 --jobs 6000":              "--nodes: 6000 instances on 1 nodes are more than 5000 each",
		"--dir " + dir + "/none":             `--dir: "` + dir + `/none" is not a folder`,
		"--against here":                     `--against: "here" is not host:port`,
		"--against 127.0.0.1:1 --restart":    "--restart: kills servers, so it is not for a region that runs already (--against)",
		"--against 127.0.0.1:1 --idle 1s":    "--idle: needs servers on this machine, so it does not go with --against",
		"--against 127.0.0.1:1 --profile x":  "--profile: needs servers on this machine, so it does not go with --against",
		"--against 127.0.0.1:1 --no-ack":     "--no-ack: the jobs could not be stopped again, so it does not go with --against",
		"--against 127.0.0.1:1 --nodes 0":    "--against 127.0.0.1:1: no regional server answers there: connection refused",
		"-o xml":                             `--output: "xml" is not one of table, json, yaml`,
		"--timeout 1s --duration 1s":         "if any flags in the group [timeout duration] are set none of the others can be; [duration timeout] were all set",
		"--nodes many":                       `invalid argument "many" for "--nodes" flag: strconv.ParseInt: parsing "many": invalid syntax`,
		"--nodes 20000 --count 2 --jobs 1.5": `invalid argument "1.5" for "--jobs" flag: strconv.ParseInt: parsing "1.5": invalid syntax`,
	} {
		cmd := Command(nil)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append([]string{"region"}, strings.Fields(args)...))
		if err := cmd.ExecuteContext(t.Context()); err == nil || err.Error() != want {
			t.Errorf("%s:\n got %v\nwant %s", args, err, want)
		}
	}
}

func TestFederationFlags(t *testing.T) {
	dir := t.TempDir()
	for args, want := range map[string]string{
		"--regions 0":                       "--regions: 0 is not 1..2048",
		"--regions 4096":                    "--regions: 4096 is not 1..2048", // no server takes more
		"--jobs 1000001":                    "--jobs: 1000001 is not 1..1000000",
		"--concurrency 0":                   "--concurrency: 0 is not 1..4096",
		"--rate -1":                         "--rate: -1 is not 0..100000",
		"--rate 5 --stream":                 "--rate: is for unary calls, so it does not go with --stream",
		"--timeout 0s":                      "--timeout: 0s is not more than 0",
		"--idle -1s":                        "--idle: -1s is less than 0",
		"--etcd -1s":                        "--etcd: -1s is less than 0",
		"--dir " + dir + "/none":            `--dir: "` + dir + `/none" is not a folder`,
		"--against here":                    `--against: "here" is not host:port`,
		"--parts -1":                        "--parts: -1 is not 0..1000000",
		"--rounds 100":                      "--rounds: 100 is not 0..99",
		"--against 127.0.0.1:1 --rounds 2":  "--rounds: needs a server on this machine, so it does not go with --against",
		"--against 127.0.0.1:1 --parts 5":   "--parts: needs a server on this machine, so it does not go with --against",
		"--against 127.0.0.1:1 --profile x": "--profile: needs a server on this machine, so it does not go with --against",
		"--against 127.0.0.1:1":             "--against 127.0.0.1:1: no global server answers there: connection refused",
		"-o xml":                            `--output: "xml" is not one of table, json, yaml`,
	} {
		cmd := Command(nil)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append([]string{"federation"}, strings.Fields(args)...))
		if err := cmd.ExecuteContext(t.Context()); err == nil || err.Error() != want {
			t.Errorf("%s:\n got %v\nwant %s", args, err, want)
		}
	}
}

func TestFailoverScaleFlags(t *testing.T) {
	for args, want := range map[string]string{
		"failover-moves --instances 0":      "--instances: 0 is not 1..1000000",
		"failover-moves --regions 1":        "--regions: 1 is not 2..2048",
		"failover-cost --regions 2":         "--regions: 2 is not 3..2048",
		"failover-cost --lease 2s":          "--lease must be at least 3s, --timeout more than 0",
		"failover-cost --phase 1s":          "--phase: 1s is less than 2s",
		"failover-moves --timeout 0s":       "--lease must be at least 3s, --timeout more than 0",
		"failover-moves --after 10s -o xml": "--output: \"xml\" is not one of table, json, yaml",
	} {
		cmd := Command(nil)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.ExecuteContext(t.Context()); err == nil || err.Error() != want {
			t.Errorf("%s:\n got %v\nwant %s", args, err, want)
		}
	}
}

func TestAgentFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--tasks 0":    "--tasks: 0 is not 1..5000",
		"--batch 3":    "--batch: 3 is not 4..1000000",
		"--window 257": "--window: 257 is not 1..256",
		"--idle -1s":   "--idle: -1s is less than 0",
		"--timeout 0s": "--timeout: 0s is not more than 0",
		"-o xml":       `--output: "xml" is not one of table, json, yaml`,
	} {
		cmd := Command(nil)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append([]string{"agent"}, strings.Fields(args)...))
		if err := cmd.ExecuteContext(t.Context()); err == nil || err.Error() != want {
			t.Errorf("%s:\n got %v\nwant %s", args, err, want)
		}
	}
}

func TestTopologyCommand(t *testing.T) {
	name := azureFile(t)
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

// azureFile writes the published table of Azure's round trips to a file.
func azureFile(t *testing.T) string {
	t.Helper()
	table := wan.AzurePublished()
	var b strings.Builder
	b.WriteString("ms," + strings.Join(table.Regions(), ",") + "\n")
	for i, from := range table.Regions() {
		b.WriteString(from)
		for j, to := range table.Regions() {
			b.WriteString(",")
			if d, ok := table.RTT(from, to); ok && i != j {
				fmt.Fprint(&b, d.Seconds()*1000)
			}
		}
		b.WriteString("\n")
	}
	return file(t, b.String())
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "rtt.csv")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
