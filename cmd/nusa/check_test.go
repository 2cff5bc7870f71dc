package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client"
)

// TestMistakesNameTheFlag: each mistake is refused with one line that names the flag,
// before anything starts and before a directory is created. `config validate` makes the
// same checks.
func TestMistakesNameTheFlag(t *testing.T) {
	for line, want := range map[string]string{
		"global":   "--data-dir is required (or NUSA_DATA_DIR,",
		"regionl":  `"regionl" is not a role: global, regional and agent are`,
		"global x": `"x": this command takes no arguments; see nusa config validate global --help`,
		"global --data-dir d --grpc-addr localhost":                      `--grpc-addr: "localhost" is not host:port`,
		"global --data-dir d --http-addr h:99999":                        `"99999" is not a port`,
		"global --data-dir d --etcd-endpoints http://h":                  `--etcd-endpoints: "http://h" is not host:port`,
		"global --data-dir d --store-quota 64m":                          `--store-quota: "64m" is not a whole number of MiB, such as 1024`,
		"global --data-dir d --lease 2s":                                 "--lease: 2s is shorter than three renewals of a second each: give at least 3s",
		"global --data-dir d --lease 0s":                                 "--lease: 0s is shorter than three renewals of a second each: give at least 3s",
		"global --data-dir d --lease -9s":                                "--lease: -9s is negative",
		"global --data-dir d --election-ttl -5s":                         "--election-ttl: -5s is negative",
		"global --data-dir d --election-ttl 0s":                          "--election-ttl: 0s is too short: give at least 1s",
		"global --data-dir d --lease 4s --election-ttl 20s":              "--election-ttl: 20s is longer than the lease of regions (--lease, 4s), so",
		"global --data-dir d --election-ttl 20s":                         "--election-ttl: 20s is longer than the lease of regions (--lease, 15s), so",
		"regional --data-dir d --region a --node-lease 1s":               "--node-lease: 1s is shorter than three renewals of a second each: give at least 3s",
		"regional --data-dir d --region a --node-lease 0s":               "--node-lease: 0s is shorter than three renewals of a second each: give at least 3s",
		"regional --data-dir d":                                          "--region is required",
		"regional --data-dir d --region East":                            `--region: "East" is not a name`,
		"regional --data-dir d --region a --join h:1,,foo,":              `--join: "foo" is not host:port`,
		"regional --data-dir d --region a --global h:0":                  "port 0 cannot be reached",
		"agent --data-dir d --region a":                                  "--servers is required",
		"agent --data-dir d --region a --servers ,,":                     "--servers: it names nothing",
		"agent --data-dir d --region a --servers h:1 --plugin dokcer=/x": "--plugin: dokcer is too much like the driver docker",
		"agent --data-dir d --region a --servers h:1 --plugin qemu":      `--plugin: "qemu" is not KEY=VALUE`,
		"agent --data-dir d --region a --servers h:1 --reserve-cpu -5":   "--reserve-cpu: -5 is negative",
	} {
		root := newRoot()
		root.SetOut(io.Discard)
		root.SetArgs(append([]string{"config", "validate"}, strings.Fields(line)...))
		if err := root.ExecuteContext(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	var out strings.Builder
	root := newRoot()
	root.SetOut(&out)
	root.SetArgs(strings.Fields("config validate agent --data-dir d --region a --servers h:1,,h:2, --http-addr -"))
	if err := root.ExecuteContext(context.Background()); err != nil || !strings.Contains(out.String(), `servers: ["h:1", "h:2"] # flag`) {
		t.Errorf("blanks in a list: %v, %s", err, out.String())
	}
}

// TestPluginsInTheConfigFile: the file may contain a mapping of names to paths.
func TestPluginsInTheConfigFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "n.yaml")
	if err := os.WriteFile(file, []byte("region: a\ndata-dir: d\nservers: [h:1]\nplugin: {qemu: /opt/qemu, wasm: /opt/wasm}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	root := newRoot()
	root.SetOut(&out)
	root.SetArgs([]string{"config", "validate", "agent", "--config", file})
	if err := root.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), "qemu") || !strings.Contains(out.String(), "/opt/wasm") {
		t.Errorf("%v, %s", err, out.String())
	}
}

// TestEveryFaultOfAFileIsOneLine: each fault is one line with its position.
func TestEveryFaultOfAFileIsOneLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "n.yaml")
	if err := os.WriteFile(file, []byte("regoin: a\nbootstrap-expect: many\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	root := newRoot()
	var out strings.Builder
	root.SetOut(io.Discard)
	root.SetErr(&out)
	code := client.ExecuteArgs(t.Context(), root, []string{"config", "validate", "regional", "--config", file})
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if code != 1 || len(lines) != 2 || !strings.HasPrefix(lines[0], "nusa: "+file+":1:1: regoin: ") || !strings.HasPrefix(lines[1], "nusa: "+file+":2:") {
		t.Errorf("exit code %d, %q", code, out.String())
	}
}
