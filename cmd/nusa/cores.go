package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// noCores lets the kernel write no core file of this process, because the file would have the keys
// of the process. It is not for agents: their tasks inherit the limit.
func noCores() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("limit the size of core files to 0: %w", err)
	}
	return nil
}
