package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/supervise"
)

// link is used on a host where the agent cannot mount. It makes symbolic links to the
// volumes in the allocation's folder. The error is a driver.ErrInvalid if a volume needs a
// mount, else a driver.ErrStart.
func link(t driver.Task, why error) error {
	for _, v := range t.Volumes {
		if v.ReadOnly || v.Target != "" {
			return fmt.Errorf("%w: task %s: volumes.%s: read_only and target need mounts, which this host does not have: %w", driver.ErrInvalid, t.ID.Task, v.Name, why)
		}
		link := filepath.Join(t.AllocDir, v.Name)
		if to, err := os.Readlink(link); err == nil && to == v.Source {
			continue
		}
		if err := os.Symlink(v.Source, link); err != nil {
			return fmt.Errorf("%w: task %s: volumes.%s: %w", driver.ErrStart, t.ID.Task, v.Name, err)
		}
	}
	return nil
}

// view returns the part of the host's files that the task sees. The volumes are mounted at
// their targets. A task of another user also sees its own folders, although that user may
// not enter the parent folders. All other files are those of the host.
func (d *Driver) view(t driver.Task, user string) (*supervise.View, error) {
	v := &supervise.View{}
	if user != "" && d.cfg.Hide != "" {
		v.Hide, v.Show = d.cfg.Hide, []string{t.Dir, t.AllocDir}
		if t.SecretsDir != "" {
			v.Show = append(v.Show, t.SecretsDir)
		}
	}
	for _, vol := range t.Volumes {
		target := t.TargetOf(vol)
		if vol.Target == "" {
			if err := mountPoint(t.AllocDir, vol); err != nil {
				return nil, fmt.Errorf("volumes.%s: %w", vol.Name, err)
			}
		} else if _, err := os.Stat(target); err != nil {
			return nil, fmt.Errorf("volumes.%s.target: %w: a process sees the host's folders, so the target must be an existing folder", vol.Name, err)
		}
		v.Mounts = append(v.Mounts, supervise.Mount{Source: vol.Source, Target: target, ReadOnly: vol.ReadOnly})
	}
	if v.Hide == "" && len(v.Mounts) == 0 {
		return nil, nil
	}
	return v, nil
}

// mountPoint makes an empty folder or file where a volume without a target is mounted.
func mountPoint(allocDir string, v driver.Volume) error {
	root, err := os.OpenRoot(allocDir) // tasks may leave links there
	if err != nil {
		return err
	}
	defer root.Close()
	source, err := os.Stat(v.Source)
	if err != nil {
		return err
	}
	if at, err := root.Lstat(v.Name); err == nil && at.IsDir() == source.IsDir() && at.Mode().Type()&fs.ModeSymlink == 0 {
		return nil
	}
	if source.IsDir() {
		return root.Mkdir(v.Name, 0o755)
	}
	f, err := root.OpenFile(v.Name, os.O_CREATE|os.O_EXCL, 0o644)
	return errors.Join(err, f.Close())
}
