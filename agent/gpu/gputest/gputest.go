// Package gputest makes the files of a machine with accelerators, for tests.
package gputest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// T is the part of testing.TB that Tree needs.
type T interface {
	Helper()
	Fatal(args ...any)
}

// Device is a pretended accelerator.
type Device struct {
	// Model is the name as the vendor writes it. Default: "NVIDIA H100 80GB HBM3".
	Model string
	// MiB is the memory, Errors the number of uncorrected memory errors.
	MiB, Errors int
}

// model is the default of Device.Model.
const model = "NVIDIA H100 80GB HBM3"

// Address returns the address of device i on the PCI bus.
func Address(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0x1b+i) }

// UUID returns the UUID of device i.
func UUID(i int) string { return fmt.Sprintf("GPU-%08d-0000-0000-0000-%012d", i, i) }

// Information returns the text of the file `information` of device i. Default of name: the default
// model.
func Information(i int, name string) string {
	return fmt.Sprintf("Model: \t\t %s\nIRQ:   \t\t 52\nGPU UUID: \t %s\nVideo BIOS: \t 96.00\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Excluded:\t No\n",
		cmp.Or(name, model), UUID(i), Address(i), i)
}

// Tree writes the files of a kernel's driver and a program nvidia-smi that prints the devices below
// root. A later call with the same root replaces the program, so the state of a device can change.
func Tree(t T, root string, devices ...Device) {
	t.Helper()
	var rows strings.Builder
	for i, d := range devices {
		dir := filepath.Join(root, "proc/driver/nvidia/gpus", Address(i))
		write(t, filepath.Join(dir, "information"), Information(i, d.Model), 0o644)
		fmt.Fprintf(&rows, "0000%s, %s, %s, %d, %d, Default, Disabled\n", strings.ToUpper(Address(i)), UUID(i), cmp.Or(d.Model, model), d.MiB, d.Errors)
	}
	write(t, filepath.Join(root, "usr/bin/nvidia-smi"), "#!/bin/sh\ncat <<'END'\n"+rows.String()+"END\n", 0o755)
}

// write replaces a file as a whole, because an agent may read it at the same time.
func write(t T, name, text string, mode os.FileMode) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	if err == nil {
		err = os.WriteFile(name+".new", []byte(text), mode)
	}
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		t.Fatal(err)
	}
}
