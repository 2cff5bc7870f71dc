//go:build integration

package local_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/agent/gpu/gputest"
)

// gpuJob is a job whose tasks print the accelerators that they have.
const gpuJob = `name: %s
groups:
  main:
    count: %d
    tasks:
      main:
        driver: process
        config: {command: /bin/sh, args: ["-c", "echo has $CUDA_VISIBLE_DEVICES $NUSA_GPU_SHARE; exec sleep 100001"]}
        resources: {cpu: 10m, memory: 16MiB, gpu: {%s}}
`

// gpuTree makes a pretended machine with two devices of different models.
func (j *joined) gpuTree() (root string) {
	root = filepath.Join(j.dir, "machine")
	gputest.Tree(j, root, gputest.Device{MiB: 81559}, gputest.Device{Model: "NVIDIA T4", MiB: 16384})
	return root
}

// gpus runs jobs on the devices of node n1: a whole device by its model, two parts of the other
// device, and jobs for which there is no device.
func (j *joined) gpus() {
	j.Helper()
	file := func(name string, count int, ask string) string {
		path := filepath.Join(j.TempDir(), name+".yaml")
		if err := os.WriteFile(path, fmt.Appendf(nil, gpuJob, name, count, ask), 0o600); err != nil {
			j.Fatal(err)
		}
		return path
	}
	var out string
	j.eventually(200*time.Millisecond, func() (err error) { // a region reports its devices after a while
		out, err = j.nusa("job", "run", "--timeout", "100s", file("whole", 1, "count: 1, model: [nvidia-h100-80gb-hbm3]"))
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	j.must("job", "run", "--timeout", "100s", file("parts", 2, "share: 400m, model: [nvidia-t4]"))
	j.refused("no region has an accelerator a100 (there are 1 × nvidia-h100-80gb-hbm3, 1 × nvidia-t4)", "job", "run", file("absent", 1, "count: 1, model: [a100]"))
	out, err := j.nusa("node", "status", "n1")
	for _, want := range []string{"nvidia-h100-80gb-hbm3", "80 GiB", "default/whole/main[0]", "default/parts/main[0] 40%", "default/parts/main[1] 40%"} {
		if err != nil || !strings.Contains(out, want) {
			j.Errorf("node status lacks %q: %v\n%s", want, err, out)
		}
	}
	j.must("job", "run", "--detach", file("late", 1, "count: 1"))
	j.eventually(200*time.Millisecond, func() error {
		out, err := j.nusa("job", "explain", "late")
		if err != nil || !strings.Contains(out, "gpu") {
			return fmt.Errorf("explain: %w\n%s", err, out)
		}
		return nil
	})
	for name, want := range map[string]string{"whole": "has " + gputest.UUID(0), "parts": "has " + gputest.UUID(1) + " 0.4"} {
		j.until(want, "job", "logs", name) // a task runs before its shell prints
	}
	j.must("job", "stop", "whole") // late gets its device
	j.until(gputest.UUID(0), "job", "logs", "late")
	for _, name := range []string{"late", "parts"} {
		j.must("job", "stop", name)
	}
}
