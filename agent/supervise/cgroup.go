package supervise

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// cgroupRoot is the mount point of cgroups. Tests replace it.
var cgroupRoot = "/sys/fs/cgroup"

// cgroupParent is the folder with the cgroups of all runs.
const cgroupParent = "nusa"

// cpuPeriod is the period of a hard CPU limit, in microseconds. The value is the kernel's
// default.
const cpuPeriod = 100_000

// cgroup holds the cgroup folders of a run. On v2 it has one folder, on v1 one for each
// controller. The zero value has no limits.
type cgroup struct {
	v2   bool
	dirs []string
	back []string // v1: for each of dirs, the folder of the supervisor's own cgroup
	file *os.File // v2: the open folder of the cgroup, in which the next process begins
}

// hierarchies returns the parent folders of the runs' cgroups.
func hierarchies() (v2 bool, parents []string) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return true, []string{filepath.Join(cgroupRoot, cgroupParent)}
	}
	for _, controller := range []string{"memory", "cpu"} {
		dir := filepath.Join(cgroupRoot, controller)
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			parents = append(parents, filepath.Join(dir, cgroupParent))
		}
	}
	return false, parents
}

// LimitsUsable returns an error if this process cannot limit memory and CPU.
func LimitsUsable(name string) error {
	c, err := makeCgroup(Limits{Cgroup: name, MemoryBytes: 64 << 20, CPUMilli: 100})
	c.remove()
	return err
}

// enterCgroup makes the cgroup of a run. The next process that this thread starts with attr
// begins in that cgroup. The method leave undoes this. To move a process that already runs
// would take the kernel 10 ms or more. On v2 clone has a flag that starts a process in a
// cgroup. On v1 the calling thread moves itself, which is fast.
func enterCgroup(l Limits, attr *syscall.SysProcAttr) (c cgroup, err error) {
	if l.Cgroup == "" {
		return cgroup{}, nil
	}
	defer func() {
		if err != nil {
			c.leave()
			c.remove()
		}
	}()
	c, err = makeCgroup(l)
	if err != nil {
		return c, err
	}
	return c, c.enter(attr)
}

// enter does the same as enterCgroup for an existing cgroup. The caller must call leave,
// also after an error.
func (c *cgroup) enter(attr *syscall.SysProcAttr) (err error) {
	if len(c.dirs) == 0 {
		return nil
	}
	if c.v2 {
		c.file, err = os.Open(c.dirs[0])
		if err != nil {
			return err
		}
		attr.UseCgroupFD, attr.CgroupFD = true, int(c.file.Fd())
		return nil
	}
	c.back = nil
	for _, dir := range c.dirs {
		home, err := home(dir)
		if err != nil {
			return err
		}
		if err := writeControl(dir, "tasks", "0"); err != nil {
			return err
		}
		c.back = append(c.back, home)
	}
	return nil
}

// home returns the present cgroup of this process in the v1 hierarchy that contains dir.
func home(dir string) (string, error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	mount := filepath.Dir(filepath.Dir(dir)) // dir is MOUNT/nusa/NAME
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		f := strings.SplitN(line, ":", 3)
		if len(f) == 3 && slices.Contains(strings.Split(f[1], ","), filepath.Base(mount)) {
			return filepath.Join(mount, f[2]), nil
		}
	}
	return mount, nil
}

func makeCgroup(l Limits) (cgroup, error) {
	v2, parents := hierarchies()
	c := cgroup{v2: v2}
	if len(parents) == 0 || !v2 && len(parents) < 2 {
		return c, errors.New("no memory and cpu control groups on this host")
	}
	if v2 {
		if err := delegate(parents[0]); err != nil {
			return c, err
		}
	}
	for _, parent := range parents {
		dir := filepath.Join(parent, l.Cgroup)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return c, err
		}
		c.dirs = append(c.dirs, dir)
	}
	return c, c.limit(Limits{}, l)
}

// delegate enables the controllers for the cgroups below the parent, on v2.
func delegate(parent string) error {
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(parent), parent} {
		err := writeControl(dir, "cgroup.subtree_control", "+memory +cpu")
		switch {
		case errors.Is(err, syscall.ENOENT):
			return fmt.Errorf("%w: %s does not offer the controllers memory and cpu (see its cgroup.controllers); a hierarchy of version 1 may have them", err, dir)
		case errors.Is(err, syscall.EBUSY):
			return fmt.Errorf("%w: processes run in %s itself, so it cannot have limited cgroups below it: give the agent a cgroup namespace of its host, or a delegated cgroup", err, dir)
		case err != nil:
			return err
		}
	}
	return nil
}

// limit writes the limits of a cgroup that differ between from and to. A new cgroup has no
// limits.
func (c cgroup) limit(from, to Limits) error {
	if len(c.dirs) == 0 {
		return errors.New("the run has no control groups")
	}
	memory, cpu := c.dirs[0], c.dirs[len(c.dirs)-1]
	set := func(dir, v1, v2 string, value int64) error {
		switch {
		case !c.v2:
			return writeControl(dir, v1, strconv.FormatInt(value, 10))
		case value < 0:
			return writeControl(dir, v2, "max")
		}
		return writeControl(dir, v2, strconv.FormatInt(value, 10))
	}
	var errs []error
	if from.MemoryBytes != to.MemoryBytes {
		errs = append(errs, set(memory, "memory.limit_in_bytes", "memory.max", cmp.Or(to.MemoryBytes, -1)))
	}
	if from.CPUMilli != to.CPUMilli {
		// A whole core has the weight 1024 on v1 and the default 100 on v2.
		milli := cmp.Or(to.CPUMilli, 1000)
		shares, weight := max(2, milli*1024/1000), min(10000, max(1, milli/10))
		if c.v2 {
			errs = append(errs, set(cpu, "", "cpu.weight", weight))
		} else {
			errs = append(errs, set(cpu, "cpu.shares", "", shares))
		}
	}
	if from.quota() != to.quota() {
		errs = append(errs, set(cpu, "cpu.cfs_quota_us", "cpu.max", to.quota()))
	}
	return errors.Join(errs...)
}

// quota returns the CPU time that a run may use in each period, in microseconds. -1 means
// no hard limit.
func (l Limits) quota() int64 {
	if !l.HardCPU || l.CPUMilli <= 0 {
		return -1
	}
	return max(1000, l.CPUMilli*cpuPeriod/1000)
}

// leave moves this thread back into its own cgroup.
func (c cgroup) leave() {
	if c.file != nil {
		c.file.Close()
	}
	for _, dir := range c.back {
		_ = writeControl(dir, "tasks", "0")
	}
}

// kill kills every process in the cgroup, also processes outside the command's process
// group.
func (c cgroup) kill() {
	if len(c.dirs) == 0 {
		return
	}
	if c.v2 && writeControl(c.dirs[0], "cgroup.kill", "1") == nil {
		return // kernels before 5.14 lack the file
	}
	killProcesses(c.dirs[0], nestedDepth)
}

// nestedDepth bounds how deep cgroups within that of a run are looked at.
const nestedDepth = 16

// killProcesses kills the processes of a cgroup, and of the cgroups that a task has made within it.
func killProcesses(dir string, depth int) {
	data, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, f := range strings.Fields(string(data)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	if depth == 0 {
		return
	}
	for _, inner := range nested(dir) {
		killProcesses(inner, depth-1)
	}
}

// existing returns the cgroup of a run, which the run's supervisor made.
func existing(l Limits) cgroup {
	v2, parents := hierarchies()
	c := cgroup{v2: v2}
	for _, p := range parents {
		if l.Cgroup != "" {
			c.dirs = append(c.dirs, filepath.Join(p, l.Cgroup))
		}
	}
	return c
}

// outOfMemory reports whether the kernel killed a process of the cgroup at the memory
// limit.
func (c cgroup) outOfMemory() bool {
	if len(c.dirs) == 0 {
		return false
	}
	name := "memory.oom_control"
	if c.v2 {
		name = "memory.events"
	}
	data, err := os.ReadFile(filepath.Join(c.dirs[0], name))
	if err != nil {
		return false
	}
	for _, line := range strings.Split(string(data), "\n") {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return n != "0"
		}
	}
	return false
}

// remove removes the folders of the cgroup, and of the cgroups within it. It succeeds once
// every process of the cgroup has ended.
func (c cgroup) remove() {
	for _, dir := range c.dirs {
		removeNested(dir, nestedDepth)
	}
}

func removeNested(dir string, depth int) {
	if os.Remove(dir) == nil || depth == 0 {
		return
	}
	for _, inner := range nested(dir) {
		removeNested(inner, depth-1)
	}
	_ = os.Remove(dir)
}

// nested returns the cgroups within a cgroup, one level deep.
func nested(dir string) (out []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out
}

func writeControl(dir, name, value string) error {
	if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o644); err != nil {
		return fmt.Errorf("control group: %w", err)
	}
	return nil
}
