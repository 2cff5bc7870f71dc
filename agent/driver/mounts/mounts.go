// Package mounts shows what is in one place of the host in another, by what was
// opened and not by a path, which who owns a folder in it may lead elsewhere
// after it was looked at. Linux only.
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

// Usable says why this process cannot mount; nil = it can.
func Usable() error { return usable() }

var usable = sync.OnceValue(func() error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		done <- Separate()
	}()
	return <-done
})

// ByPath says, for people, what it means that this process cannot mount; "" =
// it can.
func ByPath() string {
	if err := Usable(); err != nil {
		return "volumes are mounted by path, which who owns a folder in it can change: " + err.Error()
	}
	return ""
}

// Separate gives this thread, for good, a mount namespace of its own; what the
// host mounts and unmounts later happens there too.
func Separate() error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	return nil
}

// Open opens a folder or file, to be mounted. Its path was resolved when it was
// allowed: a link in it was put there since, and is an error.
func Open(path string) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if errors.Is(err, unix.ELOOP) {
		err = fmt.Errorf("there is a link where there was none when it was allowed: %w", err)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Bind mounts an open folder or file at target, with what is mounted below it.
// Read-only holds for all of that, and what the host mounts there later is not
// seen. Linux before 5.12 can make only one mount read-only: there a read-only
// one comes without those below it.
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

// bindTree attaches a copy of the tree of mounts once it is as it shall be.
// Nothing that is done to the copy reaches the tree that it is of: to unmount
// it would else unmount what is below that.
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
	keep := uintptr(0) // flags of statfs and of mount have the same numbers here
	for _, flag := range []uintptr{unix.MS_NOSUID, unix.MS_NODEV, unix.MS_NOEXEC, unix.MS_NOATIME, unix.MS_NODIRATIME} {
		keep |= uintptr(st.Flags) & flag
	}
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|keep, ""); err != nil {
		return err
	}
	return unix.Mount("", target, "", unix.MS_PRIVATE, "")
}
