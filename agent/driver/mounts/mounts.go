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

// Usable returns why this process cannot mount, or nil.
func Usable() error { return usable() }

var usable = sync.OnceValue(func() error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends
		done <- Separate()
	}()
	return <-done
})

// ByPath explains, for people, the effect if this process cannot mount. "": it can.
func ByPath() string {
	if err := Usable(); err != nil {
		return "volumes are mounted by path, and the owner of a folder in the path can change it: " + err.Error()
	}
	return ""
}

// Separate gives this thread its own mount namespace for good. Later mounts and
// unmounts of the host are visible in it.
func Separate() error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	return nil
}

// Open opens a folder or file to be mounted. Its path had no links when it was allowed, so a
// link in the path was made later and is an error.
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
// to all of them. Later mounts of the host are not visible. Linux before 5.12 can make only
// one mount read-only: there a read-only mount does not include the mounts below it.
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

// bindTree sets the attributes of a copy of the tree of mounts, and then attaches the copy.
// Changes of the copy do not affect the original tree. Otherwise an unmount of the copy would
// remove the mounts below the original.
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
	keep := uintptr(0) // statfs and mount use the same numbers for these flags
	for _, flag := range []uintptr{unix.MS_NOSUID, unix.MS_NODEV, unix.MS_NOEXEC, unix.MS_NOATIME, unix.MS_NODIRATIME} {
		keep |= uintptr(st.Flags) & flag
	}
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|keep, ""); err != nil {
		return err
	}
	return unix.Mount("", target, "", unix.MS_PRIVATE, "")
}
