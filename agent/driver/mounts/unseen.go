package mounts

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Unseen says, for people, why the engine that listens at a socket does not see
// what is mounted here for it: it has a mount namespace of its own. Something is
// mounted now and looked for through its process: a copy of the namespace that
// was made later than the stage has that, and nothing of what comes. "" = it is
// seen, or that cannot be told: the engine does not answer, this process may not
// look, or systemd listens for an engine that hides away from it.
func (s *Stage) Unseen(socket string) string {
	pid, err := listener(socket)
	if err != nil || pid <= 0 || pid == os.Getpid() || Usable() != nil || s.ready() != nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	probe := filepath.Join(s.dir, ".probe") // no run's name, so Sweep drops what a kill has left
	if err := os.Mkdir(probe, 0o700); err != nil && !os.IsExist(err) {
		return ""
	}
	if err := unix.Mount(s.of, probe, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,mode=0700"); err != nil {
		return ""
	}
	defer take(probe)
	root := fmt.Sprintf("/proc/%d/root", pid)
	var own, there unix.Stat_t
	if unix.Lstat(probe, &own) != nil || unix.Stat(root, &there) != nil {
		return ""
	}
	err = unix.Lstat(root+probe, &there)
	if err == nil && there.Dev == own.Dev || err != nil && err != unix.ENOENT {
		return ""
	}
	return fmt.Sprintf("its process %d does not see what the agent mounts below %s: they need one mount namespace, or one that follows the other", pid, Stages)
}

// listener is the process that made a socket to listen at, as this one's PID
// namespace numbers it; 0 = it is in another one.
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
