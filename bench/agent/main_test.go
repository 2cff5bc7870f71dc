package agent

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/nusa-scheduler/nusa/agent/supervise"
)

// TestMain runs the tests. With the arguments of `nusa agent` or `nusa supervise` it is
// the program that the tests start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(supervise.Main(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		if err := serveAgent(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}
