package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Usable returns an error if this process cannot mount.
func Usable() error { return usable() }

var usable = sync.OnceValue(func() error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		done <- Separate()
	}()
	return <-done
})

// ByPath returns "" if this process can mount. Otherwise it returns a text for people that
// says what follows for volumes.
func ByPath() string {
	if err := Usable(); err != nil {
		return "volumes are mounted by path, and the owner of a folder in the path can change it: " + err.Error()
	}
	return ""
}

// Separate moves this thread permanently into a new mount namespace. Later mounts and
// unmounts of the host are still visible in the namespace.
func Separate() error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	return nil
}

// Open opens a folder or file that is to be mounted. The path had no links when it was
// allowed. If it has a link now, the link was made later, and Open returns an error.
func Open(path string) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if errors.Is(err, unix.ELOOP) {
		err = fmt.Errorf("the path contains a link that was made after it was allowed: %w", err)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Bind mounts an open folder or file at target, with the mounts below it. readOnly applies
// to all of these mounts. Later mounts of the host do not appear below target if readOnly
// is set. Linux before 5.12 can make only a single mount read-only, so a read-only mount
// does not include the mounts below it.
func Bind(f *os.File, target string, readOnly bool) error {
	err := bindTree(f, target, readOnly)
	if errors.Is(err, unix.ENOSYS) {
		err = bindOne(f, target, readOnly)
	}
	if err != nil {
		return &os.PathError{Op: "mount " + filepath.Base(f.Name()) + " at", Path: target, Err: err}
	}
	return nil
}

// bindTree copies a tree of mounts, sets the attributes of the copy, and attaches the copy
// at target. The copy must be separate from the original tree. Otherwise an unmount in the
// copy would also remove mounts of the original.
func bindTree(f *os.File, target string, readOnly bool) error {
	fd, err := unix.OpenTree(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Propagation: unix.MS_SLAVE}
	if readOnly {
		attr = unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE}
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return err
	}
	return unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS)
}

func bindOne(f *os.File, target string, readOnly bool) error {
	flags := uintptr(unix.MS_BIND | unix.MS_REC)
	if readOnly {
		flags = unix.MS_BIND
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), target, "", flags, ""); err != nil {
		return err
	}
	if !readOnly {
		return unix.Mount("", target, "", unix.MS_SLAVE|unix.MS_REC, "")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(target, &st); err != nil {
		return err
	}
	keep := uintptr(0) // these flags have the same numbers in statfs and mount
	for _, flag := range []uintptr{unix.MS_NOSUID, unix.MS_NODEV, unix.MS_NOEXEC, unix.MS_NOATIME, unix.MS_NODIRATIME} {
		keep |= uintptr(st.Flags) & flag
	}
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|keep, ""); err != nil {
		return err
	}
	return unix.Mount("", target, "", unix.MS_PRIVATE, "")
}
