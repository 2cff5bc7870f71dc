package supervise

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver/mounts"
)

// View is the part of the host's files that the command sees, in its own mount namespace.
// Programs that the command executes gain no rights, because a setuid program trusts files of
// the host that the command may have replaced with its own.
type View struct {
	// Hide is a folder. Only the folders of Show, which are below Hide, are visible in it.
	// "": nothing is hidden. A user who may pass the folders above Hide may also pass
	// those above Show.
	Hide   string   `json:"hide,omitempty"`
	Show   []string `json:"show,omitempty"`
	Mounts []Mount  `json:"mounts,omitempty"`
}

// Mount shows Source at Target. Both are absolute. Source contains no link, and
// Target exists.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// enter puts this thread into the view for good, and returns the namespace.
func (v *View) enter() (*os.File, error) {
	if err := mounts.Separate(); err != nil {
		return nil, err
	}
	var show, from []*os.File
	defer func() { closeAll(append(show, from...)) }()
	for _, dir := range v.Show {
		f, err := os.OpenFile(dir, unix.O_PATH, 0) // the path of the agent's folder may contain links
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

// enterView puts this thread into an existing view. The thread's working folder no longer
// changes with that of the process.
func enterView(ns *os.File) error {
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the task's mount namespace: %w", err)
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
