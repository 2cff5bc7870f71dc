package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/dev"
	"github.com/nusa-scheduler/nusa/job"
)

// TestTryNextNamesJobAndAddress: every suggested command names the demo's job, region and
// address.
func TestTryNextNamesJobAndAddress(t *testing.T) {
	const commands = `  nusa alloc list
  nusa job logs hello --tail 5
  nusa job plan examples/batch.yaml     # what a submit would do
  nusa topology nearest southeastasia
  nusa job stop hello
`
	for addr, export := range map[string]string{cli.DefaultAddr: "", "127.0.0.1:20000": "  export NUSA_ADDR=127.0.0.1:20000\n"} {
		got := tryNext(dev.Federation{Addr: addr, Names: []string{"southeastasia", "eastus"}}, "nusa", "hello")
		if want := "\n# Try next, in another terminal\n" + export + commands; got != want {
			t.Errorf("at %s:\n%s\nwant:\n%s", addr, got, want)
		}
	}
}

// TestTokenLine: only a terminal gets the access token itself.
func TestTokenLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "operator.token")
	if err := os.WriteFile(file, []byte("secret_1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file     string
		terminal bool
		want     string
	}{
		{"", true, ""},
		{file, false, "  export NUSA_TOKEN=$(cat " + file + ")\n"},
		{file, true, "  export NUSA_TOKEN=secret_1   # the page asks for it, too\n"},
	} {
		if got := tokenLine(dev.Federation{TokenFile: c.file}, c.terminal); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// TestFirstJobNeedsOnlyPresentRegions: the suggested job needs no region that the federation lacks.
func TestFirstJobNeedsOnlyPresentRegions(t *testing.T) {
	for _, names := range [][]string{dev.DefaultRegions, {"jakarta", "tokyo"}, {"southeastasia"}, {"tokyo", "southeastasia", "japaneast"}} {
		line := firstJob(dev.Federation{Names: names}, "nusa")
		var text []byte
		var err error
		if file, ok := strings.CutPrefix(line, "nusa job run examples/"); ok {
			text, err = os.ReadFile("../../examples/" + file)
		} else if line == "nusa job init - | nusa job run -" {
			var out bytes.Buffer
			root := newRoot()
			root.SetOut(&out)
			root.SetArgs([]string{"job", "init", "-"})
			err = root.ExecuteContext(t.Context())
			text = out.Bytes()
		}
		if err != nil {
			t.Fatal(err)
		}
		spec, err := job.Parse(text, line)
		if err != nil {
			t.Fatalf("%v: %s: %v", names, line, err)
		}
		for _, n := range spec.GetRegions().GetNear() {
			if r := n.GetSelector().GetName(); r != "" && !slices.Contains(names, r) {
				t.Errorf("%v: %s is about %s", names, line, r)
			}
		}
		for _, r := range spec.GetRegions().GetAllow() {
			if !slices.Contains(names, r.GetName()) {
				t.Errorf("%v: %s allows %s", names, line, r.GetName())
			}
		}
	}
}

// TestDemoJobFitsTheRegions: the demo runs the example job if all its regions exist.
// Otherwise it runs a job that needs no specific region.
func TestDemoJobFitsTheRegions(t *testing.T) {
	t.Chdir("../..")
	for _, c := range []struct {
		dir     string
		regions []string
		example bool
	}{
		{".", dev.DefaultRegions, true},
		{".", []string{"jakarta", "tokyo"}, false},
		{t.TempDir(), dev.DefaultRegions, false},
	} {
		t.Run(strings.Join(c.regions, ","), func(t *testing.T) {
			t.Chdir(c.dir)
			f := dev.Federation{Names: c.regions, DataDir: t.TempDir()}
			file, name, err := demoJob(f)
			if err != nil || (file == helloFile) != c.example {
				t.Fatalf("%s, %v", file, err)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			spec, err := job.Parse(text, file)
			if err != nil || spec.GetName() != name || (spec.GetRegions() != nil) != c.example {
				t.Errorf("%s: %v, %v", file, spec, err)
			}
		})
	}
}

// TestDevMistakesStartNothing: mistakes are refused before anything starts.
func TestDevMistakesStartNothing(t *testing.T) {
	for line, want := range map[string]string{
		"dev --plugin qemu=/no/such/file": "--plugin qemu: there is no file /no/such/file on this node: ",
		"dev --agents 0":                  "--agents: must be at least 1",
	} {
		root := newRoot()
		root.SetArgs(strings.Fields(line))
		if err := root.ExecuteContext(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}
