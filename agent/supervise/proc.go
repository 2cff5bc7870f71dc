package supervise

import (
	"context"
	"errors"
	"iter"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stat holds the used fields of /proc/PID/stat (proc_pid_stat(5)).
type stat struct {
	pid, parent, group, session int
	state                       string
	ticks                       uint64 // start time of the process since boot, in clock ticks
	// cpu is the CPU time of the process and of its reaped children, in hundredths of a
	// second. reaped is the CPU time of the reaped children alone.
	cpu, reaped uint64
}

var errNoProcess = errors.New("no such process")

func readStat(pid int) (stat, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, errNoProcess
	}
	// The name in brackets may contain spaces and brackets.
	text := string(data)
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(f) < 20 {
		return stat{}, errNoProcess
	}
	st := stat{pid: pid, state: f[0]}
	st.parent, _ = strconv.Atoi(f[1])
	st.group, _ = strconv.Atoi(f[2])
	st.session, _ = strconv.Atoi(f[3])
	st.ticks, _ = strconv.ParseUint(f[19], 10, 64)
	for i, field := range f[11:15] { // utime, stime, cutime, cstime
		n, _ := strconv.ParseUint(field, 10, 64)
		st.cpu += n
		if i >= 2 {
			st.reaped += n
		}
	}
	return st, nil
}

// killMatching kills every process that matches, except this process and zombies. It
// returns the processes that it killed.
func killMatching(match func(stat) bool) (killed []stat) {
	for st := range processes() {
		if st.pid != os.Getpid() && st.state != "Z" && match(st) {
			killed = append(killed, st)
			_ = unix.Kill(st.pid, unix.SIGKILL)
		}
	}
	return killed
}

// endWait bounds the wait for the end of killed processes. A process ends within
// milliseconds, unless the kernel blocks it, for example on a disk that does not respond.
const endWait = time.Second

// endMatching kills the matching processes until only zombies of them are left. A killed
// process takes a moment to end. In that time it has no environment, so it no longer
// matches, but it may just have started other processes.
func endMatching(match func(stat) bool) {
	ctx, cancel := context.WithTimeout(context.Background(), endWait)
	defer cancel()
	dying := map[int]stat{}
	for pace := (Pace{}); ; {
		for _, st := range killMatching(match) {
			dying[st.pid] = st
		}
		maps.DeleteFunc(dying, func(pid int, was stat) bool {
			st, err := readStat(pid)
			return err != nil || st.state == "Z" || st.ticks != was.ticks
		})
		if len(dying) == 0 || pace.Wait(ctx) != nil {
			return
		}
	}
}

// processes returns all processes of the host.
func processes() iter.Seq[stat] {
	return func(yield func(stat) bool) {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			if st, err := readStat(pid); err == nil && !yield(st) {
				return
			}
		}
	}
}

// descendants returns the descendants of the matching processes, without zombies. A
// matching process is in the result only if it is a descendant of another matching process.
func descendants(all []stat, match func(stat) bool) []stat {
	children := map[int][]stat{}
	var next, out []stat
	for _, st := range all {
		children[st.parent] = append(children[st.parent], st)
		if match(st) {
			next = append(next, st)
		}
	}
	for seen := map[int]bool{}; len(next) > 0; {
		st := next[len(next)-1]
		next = next[:len(next)-1]
		for _, c := range children[st.pid] {
			if !seen[c.pid] && c.state != "Z" {
				seen[c.pid] = true
				out, next = append(out, c), append(next, c)
			}
		}
	}
	return out
}

// marked reports whether the environment of a process has the variable markExec with a
// value that begins with value. It returns false if the environment cannot be read.
func marked(pid int, value string) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && strings.Contains("\x00"+string(data), "\x00"+markExec+"="+value)
}

// BootID returns an id that changes with every boot of the host, or "" if the id cannot be
// read.
func BootID() string {
	data, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data))
}

// alarm fires at a reading of CLOCK_BOOTTIME. Go's own timers do not count the time in
// which the machine is suspended.
type alarm struct {
	file  *os.File
	fired chan struct{}
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	a := &alarm{file: os.NewFile(uintptr(fd), "alarm"), fired: make(chan struct{}, 1)}
	go func() {
		buf := make([]byte, 8)
		for {
			if _, err := a.file.Read(buf); err != nil {
				return
			}
			select {
			case a.fired <- struct{}{}:
			default:
			}
		}
	}()
	return a, nil
}

// set sets the time of the alarm. 0 disarms it.
func (a *alarm) set(at time.Duration) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}
	raw, err := a.file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &spec, nil) })
}

func (a *alarm) close() { a.file.Close() }
