package supervise

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Credential returns the credential of a user with all groups of the user. The user is a
// name of this host or a number. After a colon a group may follow, as a name or a number,
// such as "1000:1000". Then that is the only group. The result is nil if this process has
// the credential and cannot change it.
func Credential(name string) (*syscall.Credential, error) {
	uid, gid, err := Lookup(name)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		if int(uid) != os.Geteuid() {
			return nil, fmt.Errorf("user %s: the agent does not run as root", name)
		}
		return nil, nil
	}
	c := &syscall.Credential{Uid: uid, Gid: gid}
	u, err := user.LookupId(strconv.Itoa(int(uid)))
	if err != nil || strings.Contains(name, ":") { // a number without a name has no supplementary groups
		return c, nil
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if g, err := strconv.ParseUint(id, 10, 32); err == nil {
			c.Groups = append(c.Groups, uint32(g))
		}
	}
	return c, nil
}

// Lookup returns the number of a user and the number of the user's primary group, or of the
// group in name. name has the form that Credential accepts. If a number has no name on this
// host, its group has the same number.
func Lookup(name string) (uid, gid uint32, err error) {
	id, group, hasGroup := strings.Cut(name, ":")
	u, err := user.LookupId(id)
	if _, no := strconv.ParseUint(id, 10, 32); no != nil {
		u, err = user.Lookup(id)
		if err != nil {
			return 0, 0, err
		}
	} else if err != nil {
		u = &user.User{Uid: id, Gid: id}
	}
	if hasGroup {
		u.Gid = group
		if _, no := strconv.ParseUint(group, 10, 32); no != nil {
			g, err := user.LookupGroup(group)
			if err != nil {
				return 0, 0, err
			}
			u.Gid = g.Gid
		}
	}
	a, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return 0, 0, err
	}
	b, err := strconv.ParseUint(u.Gid, 10, 32)
	return uint32(a), uint32(b), err
}

// Ulimit is a soft and a hard limit. The greatest number means no limit.
type Ulimit struct {
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

var ulimits = map[string]int{
	"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA, "fsize": unix.RLIMIT_FSIZE,
	"memlock": unix.RLIMIT_MEMLOCK, "nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC, "stack": unix.RLIMIT_STACK,
}

// setUlimits sets the limits of a process that runs as cred, or as this process if cred is
// nil. The kernel lets a user limit its own processes. So a thread becomes that user and
// then ends.
func setUlimits(pid int, limits map[string]Ulimit, cred *syscall.Credential) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		if cred != nil {
			const keep = ^uintptr(0)
			_, _, e1 := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(cred.Gid), keep, keep)
			_, _, e2 := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(cred.Uid), keep, keep)
			if e := cmp.Or(e1, e2); e != 0 {
				done <- e
				return
			}
		}
		done <- prlimit(pid, limits)
	}()
	return <-done
}

func prlimit(pid int, limits map[string]Ulimit) error {
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		which, ok := ulimits[name]
		if !ok {
			return fmt.Errorf("ulimit %s: the limit is unknown", name)
		}
		l := limits[name]
		if err := unix.Prlimit(pid, which, &unix.Rlimit{Cur: l.Soft, Max: l.Hard}, nil); err != nil {
			return fmt.Errorf("ulimit %s: %w", name, err)
		}
	}
	return nil
}

// detachLimit bounds the wait until a traced child has stopped.
const detachLimit = 5 * time.Second

// limitTraced sets the limits of a child that this thread started with tracing. Such a
// child stops before its first instruction and continues after limitTraced. Without limits
// the child was not traced, and limitTraced does nothing.
func limitTraced(pid int, limits map[string]Ulimit, cred *syscall.Credential) error {
	if len(limits) == 0 {
		return nil
	}
	err := setUlimits(pid, limits, cred)
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		return err
	}
	for began := time.Now(); ; time.Sleep(50 * time.Microsecond) {
		err := syscall.PtraceDetach(pid)
		if err != syscall.ESRCH || unix.Kill(pid, 0) != nil {
			return err
		}
		if time.Since(began) > detachLimit {
			_ = unix.Kill(pid, unix.SIGKILL)
			return fmt.Errorf("process %d did not stop in time to set its limits", pid)
		}
	}
}
