package agent

import (
	"bufio"
	"context"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// settled is how long after its start an agent needs no more of what it needed
// to start.
const settled = 5 * time.Second

// shrink gives pages of the executable back, once: to start, an executable of
// this size touches most of itself, of which an agent then needs a third.
// What is needed again comes back from the kernel's cache. Only pages without
// changes of our own: those of a file that is mapped for reading.
func shrink(ctx context.Context) error {
	if !sleep(ctx, settled) {
		return nil
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil // as it was
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil
	}
	defer smaps.Close()
	for _, m := range unchanged(bufio.NewScanner(smaps), self) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED)
	}
	return nil
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
