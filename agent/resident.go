package agent

import (
	"bufio"
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// settled is how long no task has to change for an agent to be at rest.
	settled = 2 * time.Second
	// giveAgain is how long an agent at rest waits before it gives back once more
	// what a look at its metrics, a question or the like has brought back. Under
	// the two minutes after which the runtime collects by itself, which touches
	// much and gives nothing back.
	giveAgain = time.Minute
	// collections before memory is given back: what a pool holds goes with the
	// second, and a stack loses at most half of itself with each.
	collections = 4
)

// shrink gives memory back whenever the agent has been at rest for a while, and
// now and then while it stays so. To start, and to run many tasks, takes memory
// that idling does not.
func (e *engine) shrink(ctx context.Context, give func()) error {
	for {
		changed := e.changed.next()
		if !sleep(ctx, settled) {
			return nil
		}
		for rests := true; rests; {
			select {
			case <-changed:
				rests = false // or not yet
				continue
			default:
			}
			give()
			t := time.NewTimer(giveAgain)
			select {
			case <-changed:
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return nil
			}
			t.Stop()
		}
	}
}

// giveBack collects what is not used any more and gives it to the kernel.
func giveBack() {
	for range collections - 1 {
		runtime.GC()
	}
	debug.FreeOSMemory() // the last
	dropExecutable()
}

// dropExecutable gives pages of the executable back: to start, one of this size
// touches most of itself, of which an agent then needs a third. What is needed
// again comes back from the kernel's cache. Only pages without changes of our
// own: those of a file that is mapped for reading.
func dropExecutable() {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return // as it was
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer smaps.Close()
	for _, m := range unchanged(bufio.NewScanner(smaps), self) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED)
	}
}

// mapping is a range of addresses.
type mapping struct{ from, to uintptr }

// unchanged are the mappings of a file that cannot be written and have no page
// of our own (proc_pid_smaps(5)).
func unchanged(lines *bufio.Scanner, file string) []mapping {
	var out []mapping
	var m mapping
	ours := false
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) >= 5 && strings.Contains(f[0], "-"):
			from, to, _ := strings.Cut(f[0], "-")
			a, err1 := strconv.ParseUint(from, 16, int(8*unsafe.Sizeof(m.from)))
			b, err2 := strconv.ParseUint(to, 16, int(8*unsafe.Sizeof(m.from)))
			m = mapping{uintptr(a), uintptr(b)}
			ours = err1 == nil && err2 == nil && len(f) == 6 && f[5] == file && (f[1] == "r--p" || f[1] == "r-xp")
		case ours && f[0] == "Anonymous:" && f[1] == "0":
			out = append(out, m)
		}
	}
	return out
}
