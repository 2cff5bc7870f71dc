package supervise

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// Usage returns the resources that the run in dir uses now. The values come from the run's
// cgroup. For a value that the cgroup lacks, Usage adds up the values of the processes.
// Errors: driver.ErrNotFound, ErrNotRunning.
func Usage(dir string) (driver.Stats, error) {
	if err := Running(dir); err != nil {
		return driver.Stats{}, err
	}
	rec, err := readRecord(dir)
	if err != nil {
		return driver.Stats{}, err
	}
	spec, err := readSpec(dir)
	if err != nil {
		return driver.Stats{}, err
	}
	s := existing(spec.Limits).usage()
	if s.CPU >= 0 && s.Processes > 0 && s.MemoryBytes > 0 {
		return s, nil
	}
	p := sum(rec.Session)
	if s.CPU < 0 {
		s.CPU = p.CPU
	}
	if s.Processes <= 0 {
		s.Processes = p.Processes
	}
	if s.MemoryBytes <= 0 {
		s.MemoryBytes = p.MemoryBytes
	}
	return s, Running(dir) // if the run ended during the reads, return an error and not half of a result
}

// sum returns the resources that the processes of a supervisor use. They are all
// descendants of the supervisor. The CPU time of a process that has ended counts for the
// process that reaped it. The supervisor reaps what no other process reaps, so no CPU
// time is lost.
func sum(supervisor int) driver.Stats {
	s := driver.Stats{MemoryPeakBytes: -1}
	all := slices.Collect(processes())
	var ticks uint64
	for _, st := range descendants(all, func(st stat) bool {
		if st.pid == supervisor {
			ticks += st.reaped
		}
		return st.pid == supervisor
	}) {
		ticks += st.cpu
		s.Processes++
		s.MemoryBytes += private(st.pid)
	}
	s.CPU = time.Duration(ticks) * (time.Second / 100) // USER_HZ is 100 on every Linux system
	return s
}

// private returns the memory of a process without its shared and mapped files, in bytes
// (proc_pid_statm(5)).
func private(pid int) int64 {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	f := strings.Fields(string(data))
	if err != nil || len(f) < 3 {
		return 0
	}
	resident, _ := strconv.ParseInt(f[1], 10, 64)
	shared, _ := strconv.ParseInt(f[2], 10, 64)
	return (resident - shared) * int64(os.Getpagesize())
}

// usage returns the values of the cgroup. A missing value is negative.
func (c cgroup) usage() driver.Stats {
	s := driver.Stats{CPU: -1, MemoryBytes: -1, MemoryPeakBytes: -1, Processes: -1}
	if len(c.dirs) == 0 {
		return s
	}
	memory, cpu := c.dirs[0], c.dirs[len(c.dirs)-1]
	procs, err := os.ReadFile(filepath.Join(memory, "cgroup.procs"))
	if err == nil {
		s.Processes = len(strings.Fields(string(procs)))
	}
	used, cache, shmem := "memory.usage_in_bytes", "total_cache", "total_shmem"
	peak := "memory.max_usage_in_bytes"
	if c.v2 {
		used, cache, shmem, peak = "memory.current", "file", "shmem", "memory.peak"
		if usec, ok := keyed(filepath.Join(cpu, "cpu.stat"), "usage_usec"); ok {
			s.CPU = time.Duration(usec) * time.Microsecond
		}
	} else if ns, ok := number(filepath.Join(cpu, "cpuacct.usage")); ok {
		s.CPU = time.Duration(ns)
	}
	if all, ok := number(filepath.Join(memory, used)); ok {
		// Shared memory counts as cache, but the kernel cannot drop it.
		stat := filepath.Join(memory, "memory.stat")
		c, _ := keyed(stat, cache)
		sh, _ := keyed(stat, shmem)
		s.MemoryBytes = max(0, all-c+sh)
	}
	if most, ok := number(filepath.Join(memory, peak)); ok {
		s.MemoryPeakBytes = max(most, s.MemoryBytes)
	}
	return s
}

// number reads a file that contains one number.
func number(path string) (int64, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return n, err == nil
}

// keyed returns the number after key in a file with lines "KEY NUMBER".
func keyed(path, key string) (int64, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	for _, line := range strings.Split(string(data), "\n") {
		if value, ok := strings.CutPrefix(line, key+" "); ok {
			n, err := strconv.ParseInt(value, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
