package main

import (
	"context"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client"
	"github.com/nusa-scheduler/nusa/cmd/nusa/dev"
)

// TestTryNext: every command of the demo's last words is about what it should.
func TestTryNext(t *testing.T) {
	const commands = `  nusa alloc list
  nusa job logs hello --tail 5
  nusa job plan examples/batch.yaml     # what a submit would do
  nusa topology nearest southeastasia
  nusa job stop hello
`
	for addr, export := range map[string]string{client.DefaultAddr: "", "127.0.0.1:20000": "  export NUSA_ADDR=127.0.0.1:20000\n"} {
		got := tryNext(dev.Federation{Addr: addr, Names: []string{"southeastasia", "eastus"}}, "nusa", "hello")
		if want := "\n# Try next, in another terminal\n" + export + commands; got != want {
			t.Errorf("at %s:\n%s\nwant:\n%s", addr, got, want)
		}
	}
}

// TestDevMistakes: nothing is started that could not work.
func TestDevMistakes(t *testing.T) {
	for line, want := range map[string]string{
		"dev --plugin qemu=/no/such/file": "--plugin qemu: cannot be started: ",
		"dev --agents 0":                  "--agents: must be at least 1",
	} {
		root := newRoot()
		root.SetArgs(strings.Fields(line))
		if err := root.ExecuteContext(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}
