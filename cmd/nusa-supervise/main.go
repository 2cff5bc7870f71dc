// Command nusa-supervise is `nusa supervise` without the other commands. Its size is a
// thirtieth of nusa's, so it starts in a tenth of the time and memory. `make build` embeds
// it into nusa (package agent/supervise/slim).
package main

import (
	"os"

	"github.com/nusa-scheduler/nusa/agent/supervise"
)

func main() { os.Exit(supervise.Main(os.Args[1:])) }
