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
)

const information = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 52\nGPU UUID: \t %s\nVideo BIOS: \t 96.00\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Excluded:\t No\n"

// tree makes the files of a kernel's driver with a number of devices.
func tree(t *testing.T, n int) (root string) {
	t.Helper()
	root = t.TempDir()
	for i := range n {
		at := address(i)
		dir := filepath.Join(root, proc, at)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "information"), fmt.Appendf(nil, information, uuid(i), at, i), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func address(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0x1b+i) }
func uuid(i int) string    { return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i) }

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
	}{
		"no driver":         {},
		"two healthy":       {n: 2, answer: row(0, "81559", "0") + row(1, "81559", "0"), memory: []int64{81559 << 20, 81559 << 20}, problems: []string{"", ""}},
		"no tool":           {n: 1, err: exec.ErrNotFound, memory: []int64{0}, problems: []string{""}},
		"the tool fails":    {n: 1, err: errors.New("exit status 9"), memory: []int64{0}, problems: []string{"nvidia-smi: exit status 9"}},
		"one fell off":      {n: 2, answer: row(0, "81559", "[N/A]"), memory: []int64{81559 << 20, 0}, problems: []string{"", "nvidia-smi does not list the device"}},
		"memory errors":     {n: 1, answer: row(0, "81559", "3"), memory: []int64{81559 << 20}, problems: []string{"3 uncorrected memory errors since the driver was loaded"}},
		"a reset is needed": {n: 1, answer: row(0, "[GPU requires reset]", "[GPU requires reset]"), memory: []int64{0}, problems: []string{"nvidia-smi says that the device must be reset"}},
		"divided":           {n: 1, answer: strings.Replace(row(0, "81559", "0"), "Disabled", "Enabled", 1), memory: []int64{81559 << 20}, problems: []string{"MIG divides the device, and tasks get only whole devices"}},
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
			if d.UUID != uuid(i) || d.Model != "nvidia-h100-80gb-hbm3" || d.Address != address(i) {
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
	d := parseInformation(address(0), fmt.Sprintf(information, "GPU-????????-????-????-????-????????????", address(0), 0))
	if got := merge([]Device{d}, row(0, "81559", "0"), nil); got[0].UUID != uuid(0) || got[0].Problem != "" {
		t.Errorf("with nvidia-smi: %+v", got)
	}
	if got := merge([]Device{d}, "", exec.ErrNotFound); got[0].UUID != "" || got[0].Problem == "" {
		t.Errorf("without: %+v", got)
	}
}
