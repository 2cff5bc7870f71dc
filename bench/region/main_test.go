package region

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs the tests. With the arguments of `nusa regional` it is the program that
// the tests start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "regional" {
		if err := serveRegional(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}
