package gpu

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"time"
)

const (
	// queryLimit bounds a run of nvidia-smi. On a machine with many idle devices a run takes some
	// seconds.
	queryLimit = 20 * time.Second
	// maxOutput bounds the output of nvidia-smi that is read, in bytes.
	maxOutput = 1 << 20
	// maxDevices bounds the devices of a host.
	maxDevices = 64
	// proc is the folder of the kernel's driver, relative to the root of the file system.
	proc = "proc/driver/nvidia/gpus"
)

// Device is one accelerator.
type Device struct {
	// UUID identifies the device and never changes. Model is in lower case with dashes.
	UUID, Model string
	// Address is the device's address on the PCI bus.
	Address string
	// MemoryBytes is 0 if it is unknown.
	MemoryBytes int64
	// Exclusive means that only one program at a time can use the device.
	Exclusive bool
	// Problem says why no task may use the device. "" means that the device is healthy.
	Problem string
}

// Host finds the accelerators of a host.
type Host struct {
	// Root is the root of the file system. Default: "/".
	Root string
	// Query returns the output of nvidia-smi for the arguments. Default: it runs the
	// program that is in the PATH, or with Root the program usr/bin/nvidia-smi below Root.
	Query func(ctx context.Context, args ...string) ([]byte, error)
}

// Devices returns the accelerators, sorted by address. A host without the kernel's driver has
// none. If nvidia-smi is not installed, the memory of the devices is unknown, and they count as
// healthy. If nvidia-smi fails, each device has a problem. If it does not end in time, Devices
// returns an error.
func (h Host) Devices(ctx context.Context) ([]Device, error) {
	root, err := os.OpenRoot(cmp.Or(h.Root, "/"))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	folder, err := root.Open(proc)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("accelerators: %w", err)
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("accelerators: %w", err)
	}
	slices.Sort(names)
	if len(names) > maxDevices {
		return nil, fmt.Errorf("accelerators: %d devices, at most %d", len(names), maxDevices)
	}
	var out []Device
	for _, name := range names {
		text, err := root.ReadFile(path.Join(proc, name, "information"))
		if err != nil {
			return nil, fmt.Errorf("accelerator %s: %w", name, err)
		}
		out = append(out, parseInformation(name, string(text)))
	}
	if len(out) == 0 {
		return nil, nil
	}
	query := h.Query
	if query == nil {
		query = h.run
	}
	ctx, cancel := context.WithTimeout(ctx, queryLimit)
	defer cancel()
	answer, err := query(ctx, queryArgs...)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("accelerators: nvidia-smi: %w", ctx.Err())
	}
	return merge(out, string(answer), err), nil
}

// run runs nvidia-smi.
func (h Host) run(ctx context.Context, args ...string) ([]byte, error) {
	program := "nvidia-smi"
	if h.Root != "" {
		program = filepath.Join(h.Root, "usr/bin", program)
		_, err := os.Stat(program)
		if errors.Is(err, os.ErrNotExist) {
			return nil, exec.ErrNotFound
		}
	}
	cmd := exec.CommandContext(ctx, program, args...)
	out := &limited{}
	cmd.Stdout = out
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	return out.Bytes(), err
}

// limited stores the first maxOutput bytes that are written to it, and drops the rest.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := maxOutput - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
