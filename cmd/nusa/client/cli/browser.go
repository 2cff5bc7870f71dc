package cli

import (
	"context"
	"os"
	"os/exec"
)

// OpenBrowser opens an address in the user's browser, and reports whether there is one. Others on this
// machine can read the address in the list of processes, so it must have no secret that lasts.
func OpenBrowser(ctx context.Context, address string) bool {
	program := os.Getenv("BROWSER")
	if program == "" && (os.Getenv("DISPLAY") != "" || os.Getenv("WAYLAND_DISPLAY") != "") {
		program = "xdg-open"
	}
	if program == "" {
		return false
	}
	cmd := exec.CommandContext(ctx, program, address)
	if cmd.Start() != nil {
		return false
	}
	go func() { _ = cmd.Wait() }() // ends with the browser, or with the context
	return true
}
