// Command check prints the accelerators that an agent on this machine would find. `make
// gpu-check` runs it. The exit code is 1 if no accelerator is healthy.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/nusa-scheduler/nusa/agent/gpu"
)

func main() {
	devices, err := gpu.Host{}.Devices(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	healthy := 0
	for _, d := range devices {
		health := "healthy"
		if d.Problem != "" {
			health = d.Problem
		} else {
			healthy++
		}
		fmt.Printf("%s  %s  %s  %d MiB  %s\n", d.Address, d.UUID, d.Model, d.MemoryBytes>>20, health)
	}
	if healthy == 0 {
		fmt.Fprintf(os.Stderr, "tasks can use none of the %d accelerators\n", len(devices))
		os.Exit(1)
	}
}
