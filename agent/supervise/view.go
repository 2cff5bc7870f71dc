package supervise

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver/mounts"
)

// View is the part of the host's files that the command sees, in its own mount namespace.
// Programs that the command executes gain no rights. A setuid program would trust files of
// the host that the command may have replaced by mounts.
type View struct {
	// Hide is a folder in which only the folders of Show are visible. Show is below Hide.
	// "" means that nothing is hidden. A user who may enter the parent folders of Hide may
	// also enter those of Show.
	Hide   string   `json:"hide,omitempty"`
	Show   []string `json:"show,omitempty"`
	Mounts []Mount  `json:"mounts,omitempty"`
}

// Mount says that Source is mounted at Target. Both paths are absolute. Source contains no
// link, and Target exists.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// enter puts this thread permanently into the view. It returns the mount namespace.
func (v *View) enter() (*os.File, error) {
	if err := mounts.Separate(); err != nil {
		return nil, err
	}
	var show, from []*os.File
	defer func() { closeAll(append(show, from...)) }()
	for _, dir := range v.Show {
		f, err := os.OpenFile(dir, unix.O_PATH, 0) // a link is allowed here, because the path of the agent's folder may contain links
		if err != nil {
			return nil, err
		}
		show = append(show, f)
	}
	for _, m := range v.Mounts {
		f, err := mounts.Open(m.Source)
		if err != nil {
			return nil, err
		}
		from = append(from, f)
	}
	if v.Hide != "" {
		if err := unix.Mount("nusa-view", v.Hide, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,mode=0711"); err != nil {
			return nil, fmt.Errorf("hide %s: %w", v.Hide, err)
		}
		for i, dir := range v.Show {
			if err := errors.Join(os.MkdirAll(dir, 0o711), mounts.Bind(show[i], dir, false)); err != nil {
				return nil, err
			}
		}
	}
	for i, m := range v.Mounts {
		if err := mounts.Bind(from[i], m.Target, m.ReadOnly); err != nil {
			return nil, err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	return os.Open("/proc/thread-self/ns/mnt")
}

// enterView puts this thread into an existing view. From then on the thread has its own
// working folder.
func enterView(ns *os.File) error {
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the task's mount namespace: %w", err)
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
