package store

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleasePages takes the pages of the embedded member's database out of the process. They stay in the
// kernel's cache of files, so the next use of a page takes a microsecond. etcd maps the whole database
// when it starts. Without ReleasePages, each page that was ever used stays in the process.
func ReleasePages(s Store) error {
	e, _ := s.(*Etcd)
	if e == nil || e.member == nil {
		return nil
	}
	path, err := filepath.EvalSymlinks(filepath.Join(e.member.Config().Dir, "member", "snap", "db"))
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return fmt.Errorf("find the database: %w", err)
	}
	// While a read is open, the database stays where it is mapped.
	tx := e.member.Server.Backend().ConcurrentReadTx()
	tx.RLock()
	defer tx.RUnlock()
	from, to, err := mapped(path)
	if err != nil || from == to {
		return err
	}
	if _, _, code := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); code != 0 {
		return fmt.Errorf("release the pages of %s: %w", path, code)
	}
	return nil
}

// mapped returns the addresses at which this process has mapped a file for reading. Both are 0 if it has
// not.
func mapped(path string) (from, to uintptr, err error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// 7f1c00000000-7f1e80000000 r--s 00000000 00:2e 5678 /data/member/snap/db
		var rights string
		if !strings.HasSuffix(lines.Text(), " "+path) {
			continue
		}
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &rights); err != nil {
			return 0, 0, fmt.Errorf("read the mapping of %s: %w", path, err)
		}
		if rights == "r--s" {
			return from, to, nil
		}
	}
	return 0, 0, nil
}
