package supervise

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// View is what of the host's files the command sees, in a mount namespace of its
// own. What it then executes gains no rights: it may have put its own files
// where a setuid program trusts those of the host.
type View struct {
	// Hide is a folder of which only Show, folders below it, is seen; "" = all
	// is. Whoever passes the folders above Hide passes those above Show.
	Hide   string   `json:"hide,omitempty"`
	Show   []string `json:"show,omitempty"`
	Mounts []Mount  `json:"mounts,omitempty"`
}

// Mount shows Source at Target, both absolute. Source has no link in it; Target
// is there.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// ViewsUsable says why commands cannot have a View; nil = they can.
func ViewsUsable() error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		done <- separate()
	}()
	return <-done
}

// separate gives this thread a mount namespace of its own; what the host mounts
// and unmounts later happens there too.
func separate() error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	return nil
}

// enter makes the view that of this thread, for good, and returns the namespace.
func (v *View) enter() (*os.File, error) {
	if err := separate(); err != nil {
		return nil, err
	}
	show, err := openAll(v.Show, 0) // the path of the agent's folder may have links
	defer closeAll(show)
	if err != nil {
		return nil, err
	}
	var sources []string
	for _, m := range v.Mounts {
		sources = append(sources, m.Source)
	}
	from, err := openAll(sources, unix.RESOLVE_NO_SYMLINKS) // they were resolved when they were allowed
	defer closeAll(from)
	if err != nil {
		return nil, err
	}
	if v.Hide != "" {
		if err := unix.Mount("nusa-view", v.Hide, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,mode=0711"); err != nil {
			return nil, fmt.Errorf("hide %s: %w", v.Hide, err)
		}
		for i, dir := range v.Show {
			if err := errors.Join(os.MkdirAll(dir, 0o711), bind(show[i], dir, false)); err != nil {
				return nil, err
			}
		}
	}
	for i, m := range v.Mounts {
		if err := bind(from[i], m.Target, m.ReadOnly); err != nil {
			return nil, err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	return os.Open("/proc/thread-self/ns/mnt")
}

// enterView makes an entered view that of this thread, which has its folder to
// itself.
func enterView(ns *os.File) error {
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the task's mount namespace: %w", err)
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

func openAll(paths []string, resolve uint64) ([]*os.File, error) {
	var out []*os.File
	for _, p := range paths {
		fd, err := unix.Openat2(unix.AT_FDCWD, p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve})
		if err != nil {
			return out, &os.PathError{Op: "open", Path: p, Err: err}
		}
		out = append(out, os.NewFile(uintptr(fd), p))
	}
	return out, nil
}

// bind mounts an open file or folder. Read-only it comes without what is mounted
// below it, which would stay writable.
func bind(f *os.File, target string, readOnly bool) error {
	fail := func(err error) error {
		return &os.PathError{Op: "mount " + filepath.Base(f.Name()) + " at", Path: target, Err: err}
	}
	flags := uintptr(unix.MS_BIND | unix.MS_REC)
	if readOnly {
		flags = unix.MS_BIND
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), target, "", flags, ""); err != nil {
		return fail(err)
	}
	if !readOnly {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(target, &st); err != nil {
		return fail(err)
	}
	keep := uintptr(0) // flags of statfs and of mount have the same numbers here
	for _, flag := range []uintptr{unix.MS_NOSUID, unix.MS_NODEV, unix.MS_NOEXEC, unix.MS_NOATIME, unix.MS_NODIRATIME} {
		keep |= uintptr(st.Flags) & flag
	}
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|keep, ""); err != nil {
		return fail(err)
	}
	return nil
}
