package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Errors of OpenDataDir and SetCluster. Their texts name the directory.
var (
	// ErrOtherRole: the directory belongs to another role.
	ErrOtherRole = errors.New("data directory of another role")
	// ErrOtherCluster: the directory belongs to another cluster.
	ErrOtherCluster = errors.New("data directory of another cluster")
	// ErrDirInUse: another process uses the directory.
	ErrDirInUse = errors.New("data directory in use")
	// ErrNotDataDir: the directory has other files, or files of a newer version.
	ErrNotDataDir = errors.New("not a data directory of this version")
)

const (
	markerName = "nusa.json"
	lockName   = "nusa.lock"
	// markerFormat is the only format that this version writes and reads.
	markerFormat = 1
)

// marker names the owner of a data directory.
type marker struct {
	Format    int    `json:"format"`
	Role      string `json:"role"`
	ClusterID string `json:"cluster_id,omitempty"`
}

// DataDir is a data directory that this process owns until Close.
type DataDir struct {
	dir    string
	lock   *os.File
	marker marker
}

// OpenDataDir opens dir as the data directory of a role ("global",
// "regional/NAME", "agent"…) and creates it with mode 0700 when it does not exist.
// clusterID is empty while it is unknown. dir must be empty or made by OpenDataDir.
func OpenDataDir(dir, role, clusterID string) (*DataDir, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := checkForeign(dir); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s: another nusa runs with it; choose another with --data-dir", ErrDirInUse, dir)
		}
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	d := &DataDir{dir: dir, lock: lock}
	if err := d.claim(role, clusterID); err != nil {
		lock.Close()
		return nil, err
	}
	return d, nil
}

// checkForeign refuses a directory that has files and no marker: it may be a home
// directory.
func checkForeign(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	other := ""
	for _, e := range entries {
		switch e.Name() {
		case markerName:
			return nil
		case lockName, markerName + ".new", "lost+found":
		default:
			other = e.Name()
		}
	}
	if other != "" {
		return fmt.Errorf("%w: %s holds %s and no %s; choose an empty one with --data-dir", ErrNotDataDir, dir, other, markerName)
	}
	return nil
}

func (d *DataDir) claim(role, clusterID string) error {
	text, err := os.ReadFile(d.Path(markerName))
	if errors.Is(err, os.ErrNotExist) {
		return d.write(marker{Format: markerFormat, Role: role, ClusterID: clusterID})
	}
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	var m marker
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrNotDataDir, d.Path(markerName), err)
	}
	if m.Format != markerFormat {
		return fmt.Errorf("%w: %s has format %d, this version reads %d", ErrNotDataDir, d.Path(markerName), m.Format, markerFormat)
	}
	if m.Role != role {
		return fmt.Errorf("%w: %s belongs to %s, not to %s; choose another with --data-dir", ErrOtherRole, d.dir, m.Role, role)
	}
	d.marker = m
	if clusterID != "" {
		return d.SetCluster(clusterID)
	}
	return nil
}

// Path returns the path of a file in the directory.
func (d *DataDir) Path(name ...string) string {
	return filepath.Join(append([]string{d.dir}, name...)...)
}

// ClusterID returns the cluster that the directory is bound to; empty for none yet.
func (d *DataDir) ClusterID() string { return d.marker.ClusterID }

// SetCluster binds the directory to a cluster. The binding is durable.
func (d *DataDir) SetCluster(id string) error {
	switch d.marker.ClusterID {
	case id:
		return nil
	case "":
		m := d.marker
		m.ClusterID = id
		return d.write(m)
	}
	return fmt.Errorf("%w: %s belongs to cluster %s, not to %s; choose another with --data-dir", ErrOtherCluster, d.dir, d.marker.ClusterID, id)
}

// write replaces the marker, completely or not at all, even when power fails.
func (d *DataDir) write(m marker) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("mark data directory: %w", err)
		}
	}()
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := ReplaceFile(d.Path(markerName), append(text, '\n')); err != nil {
		return err
	}
	d.marker = m
	return nil
}

// ReplaceFile writes a file that only its owner can read, completely or not at all,
// even when power fails. While it writes, a file with the suffix ".new" exists.
func ReplaceFile(path string, text []byte) error {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Close lets other processes use the directory. The lock file stays: if it were
// removed, two processes could lock two different files.
func (d *DataDir) Close() error { return d.lock.Close() }
