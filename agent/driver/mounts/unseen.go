package mounts

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Unseen returns, for people, why the engine that listens at a socket does not see the
// mounts in this folder: the engine has its own mount namespace. Unseen mounts a probe and
// looks for the probe through the engine's process. It must mount something new, because a
// copied namespace shows the old mounts but no later ones. Unseen returns "" if the engine
// sees the probe. It also returns "" if that cannot be known: the engine does not respond,
// this process may not look, or systemd listens for the engine.
func (s *Folder) Unseen(socket string) string {
	pid, err := listener(socket)
	if err != nil || pid <= 0 || pid == os.Getpid() || Usable() != nil || s.ready() != nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	probe := filepath.Join(s.dir, ".probe") // no run has this name, so Sweep removes the probe if this process is killed
	if err := os.Mkdir(probe, 0o700); err != nil && !os.IsExist(err) {
		return ""
	}
	if err := unix.Mount(s.of, probe, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,mode=0700"); err != nil {
		return ""
	}
	defer removeMount(probe)
	root := fmt.Sprintf("/proc/%d/root", pid)
	var own, there unix.Stat_t
	if unix.Lstat(probe, &own) != nil || unix.Stat(root, &there) != nil {
		return ""
	}
	err = unix.Lstat(root+probe, &there)
	if err == nil && there.Dev == own.Dev || err != nil && err != unix.ENOENT {
		return ""
	}
	return fmt.Sprintf("its process %d does not see what the agent mounts below %s: agent and engine need one mount namespace, or the engine's must receive the mounts of the agent's", pid, Root)
}

// listener returns the id of the process that listens at a socket, in the PID namespace of
// this process. It returns 0 if the listening process is not visible in that
// namespace.
func listener(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return 0, err
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}
