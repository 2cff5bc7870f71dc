package store

import (
	"os"

	"golang.org/x/sys/unix"
)

// reserve is the disk space, in bytes, that the store holds beyond what it uses. With it
// the agent can write when other programs have filled the disk. The orders and records of a
// thousand allocations take less.
const reserve = 4 << 20

// openReserved opens the store's file. It also reserves disk space for the file, if the
// file system supports that and has the space.
func openReserved(path string, flag int, perm os.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flag, perm)
	if err != nil {
		return nil, err
	}
	if fi, err := f.Stat(); err == nil {
		_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, fi.Size()+reserve)
	}
	return f, nil
}
