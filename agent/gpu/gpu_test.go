package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/agent/gpu/gputest"
)

// tree makes the files of a kernel's driver with a number of devices.
func tree(t *testing.T, n int) (root string) {
	t.Helper()
	root = t.TempDir()
	gputest.Tree(t, root, slices.Repeat([]gputest.Device{{}}, n)...)
	return root
}

func address(i int) string { return gputest.Address(i) }
func uuid(i int) string    { return gputest.UUID(i) }

// row is a line of nvidia-smi.
func row(i int, memory, errs string) string {
	return fmt.Sprintf("0000%s, %s, NVIDIA H100 80GB HBM3, %s, %s, Default, Disabled\n", strings.ToUpper(address(i)), uuid(i), memory, errs)
}

func TestDevices(t *testing.T) {
	for name, c := range map[string]struct {
		n        int
		answer   string
		err      error
		memory   []int64
		problems []string
		// exclusive: each device is Exclusive.
		exclusive bool
	}{
		"no driver":         {},
		"two healthy":       {n: 2, answer: row(0, "81559", "0") + row(1, "81559", "0"), memory: []int64{81559 << 20, 81559 << 20}, problems: []string{"", ""}},
		"no tool":           {n: 1, err: exec.ErrNotFound, memory: []int64{0}, problems: []string{""}},
		"the tool fails":    {n: 1, err: errors.New("exit status 9"), memory: []int64{0}, problems: []string{"nvidia-smi: exit status 9"}},
		"one fell off":      {n: 2, answer: row(0, "81559", "[N/A]"), memory: []int64{81559 << 20, 0}, problems: []string{"", "nvidia-smi does not list the device"}},
		"memory errors":     {n: 1, answer: row(0, "81559", "3"), memory: []int64{81559 << 20}, problems: []string{"3 uncorrected memory errors since the driver was loaded"}},
		"a reset is needed": {n: 1, answer: row(0, "[GPU requires reset]", "[GPU requires reset]"), memory: []int64{0}, problems: []string{"nvidia-smi says that the device must be reset"}},
		"divided":           {n: 1, answer: strings.Replace(row(0, "81559", "0"), "Disabled", "Enabled", 1), memory: []int64{81559 << 20}, problems: []string{"MIG divides the device, and tasks get only whole devices"}},
		"exclusive":         {n: 1, answer: strings.Replace(row(0, "81559", "0"), "Default", "Exclusive_Process", 1), memory: []int64{81559 << 20}, problems: []string{""}, exclusive: true},
		"a message first":   {n: 1, answer: "warning: something\n" + row(0, "81559", "0"), memory: []int64{81559 << 20}, problems: []string{""}},
	} {
		got, err := Host{Root: tree(t, c.n), Query: func(context.Context, ...string) ([]byte, error) { return []byte(c.answer), c.err }}.Devices(t.Context())
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var memory []int64
		var problems []string
		for i, d := range got {
			memory, problems = append(memory, d.MemoryBytes), append(problems, d.Problem)
			if d.UUID != uuid(i) || d.Model != "nvidia-h100-80gb-hbm3" || d.Address != address(i) || d.Exclusive != c.exclusive {
				t.Errorf("%s: %+v", name, d)
			}
		}
		if !slices.Equal(memory, c.memory) || !slices.Equal(problems, c.problems) {
			t.Errorf("%s: %v %q", name, memory, problems)
		}
	}
}

// TestUUIDOfAnUnusedDevice: until a program opens a device, the kernel's driver does not know its
// UUID. nvidia-smi reports it.
func TestUUIDOfAnUnusedDevice(t *testing.T) {
	d := parseInformation(address(0), strings.Replace(gputest.Information(0, ""), uuid(0), "GPU-????????-????-????-????-????????????", 1))
	if got := merge([]Device{d}, row(0, "81559", "0"), nil); got[0].UUID != uuid(0) || got[0].Problem != "" {
		t.Errorf("with nvidia-smi: %+v", got)
	}
	if got := merge([]Device{d}, "", exec.ErrNotFound); got[0].UUID != "" || got[0].Problem == "" {
		t.Errorf("without: %+v", got)
	}
}

// TestRoot: below another root, the program nvidia-smi of that root reports the devices.
func TestRoot(t *testing.T) {
	root := t.TempDir()
	gputest.Tree(t, root, gputest.Device{MiB: 100}, gputest.Device{Model: "NVIDIA T4", MiB: 50, Errors: 2})
	got, err := Host{Root: root}.Devices(t.Context())
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v %v", got, err)
	}
	if d := got[0]; d.UUID != uuid(0) || d.MemoryBytes != 100<<20 || d.Problem != "" {
		t.Errorf("the first: %+v", d)
	}
	if d := got[1]; d.Model != "nvidia-t4" || d.MemoryBytes != 50<<20 || !strings.Contains(d.Problem, "2 uncorrected memory errors") {
		t.Errorf("the second: %+v", d)
	}
	if err := os.Remove(filepath.Join(root, "usr/bin/nvidia-smi")); err != nil {
		t.Fatal(err)
	}
	got, err = Host{Root: root}.Devices(t.Context())
	if err != nil || len(got) != 2 || got[0].MemoryBytes != 0 || got[0].Problem != "" {
		t.Errorf("without the program: %+v %v", got, err)
	}
}
