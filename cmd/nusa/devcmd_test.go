package main

import (
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client"
	"github.com/nusa-scheduler/nusa/cmd/nusa/dev"
)

// TestTryNext: every command of the demo's last words is about what it should.
func TestTryNext(t *testing.T) {
	const commands = `  nusa alloc list                       # then: nusa alloc logs -f ID
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
