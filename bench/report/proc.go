package report

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of CPU times in /proc. The kernel's USER_HZ is 100 on every
// architecture that Go supports.
const tick = 10 * time.Millisecond

// CPUTime returns the CPU time that a process has used so far, user and system together.
func CPUTime(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return ParseStat(data, 14)
}

// ChildrenTime returns the CPU time of the children that a process has waited for, and of
// their children.
func ChildrenTime(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return ParseStat(data, 16)
}

// ParseStat returns the sum of two successive fields of /proc/PID/stat: 14 for utime and
// stime, 16 for cutime and cstime, see proc(5). Field 2 is a name in parentheses that may
// contain any character.
func ParseStat(data []byte, number int) (time.Duration, error) {
	first := number - 3 // field 3 follows the name
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < first+2 {
		return 0, fmt.Errorf("/proc/PID/stat has only %d fields after the name", len(fields))
	}
	user, err := strconv.ParseInt(fields[first], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/PID/stat: %w", err)
	}
	system, err := strconv.ParseInt(fields[first+1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/PID/stat: %w", err)
	}
	return time.Duration(user+system) * tick, nil
}

// Memory reads the value of a key in /proc/PID/FILE, which is in kB, and returns it in MB
// of 10⁶ bytes.
func Memory(pid int, file, key string) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(line, key); found {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return Round(kib*1024/1e6, 2), err
		}
	}
	return 0, fmt.Errorf("/proc/PID/%s has no %s", file, key)
}

// ChildrenOf returns the process ids of the direct children of a process.
func ChildrenOf(pid int) ([]int, error) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil, err
	}
	var out []int
	for _, t := range threads {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		if err != nil {
			continue // the thread has ended
		}
		for _, f := range strings.Fields(string(data)) {
			if child, err := strconv.Atoi(f); err == nil {
				out = append(out, child)
			}
		}
	}
	return out, nil
}

// OwnCPU returns the CPU time that this process has used so far.
func OwnCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Types of file systems in memory, where fsync has no effect, see statfs(2).
const (
	tmpfsMagic = 0x01021994
	ramfsMagic = 0x858458f6
)

// Filesystem returns the kind of file system of a folder, and whether fsync there reaches
// a disk.
func Filesystem(dir string) (name string, durable bool, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return "", false, fmt.Errorf("--dir %s: %w", dir, err)
	}
	known := map[int64]string{
		tmpfsMagic: "tmpfs", ramfsMagic: "ramfs", 0xef53: "ext4", 0x58465342: "xfs",
		0x9123683e: "btrfs", 0x794c7630: "overlay", 0x2fc12fc1: "zfs", 0x6969: "nfs",
	}
	kind := int64(s.Type)
	name, found := known[kind]
	if !found {
		name = fmt.Sprintf("0x%x", kind)
	}
	return name, kind != tmpfsMagic && kind != ramfsMagic, nil
}

// SyncTimes writes blocks of 4 KiB with an fsync after each, as a log does. It returns the
// quantiles of the time for a block.
func SyncTimes(dir string) (Quantiles, error) {
	const blocks, size = 100, 4 << 10
	f, err := os.OpenFile(filepath.Join(dir, "fsync"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return Quantiles{}, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	block := make([]byte, size)
	var all []time.Duration
	for range blocks {
		start := time.Now()
		if _, err := f.Write(block); err != nil {
			return Quantiles{}, err
		}
		if err := f.Sync(); err != nil {
			return Quantiles{}, err
		}
		all = append(all, time.Since(start))
	}
	return QuantilesOf(all), nil
}

// BytesWritten returns the bytes that a process has caused to be written to disks so far.
func BytesWritten(pid int) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(line, "write_bytes:"); found {
			return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, fmt.Errorf("/proc/PID/io has no write_bytes")
}
