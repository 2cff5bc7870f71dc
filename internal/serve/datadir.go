package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/nusa-scheduler/nusa/internal/replace"
)

// Errors of OpenDataDir and SetCluster. The text of an error names the directory.
var (
	// ErrOtherRole means that the directory belongs to another role.
	ErrOtherRole = errors.New("data directory of another role")
	// ErrOtherCluster means that the directory belongs to another cluster.
	ErrOtherCluster = errors.New("data directory of another cluster")
	// ErrDirInUse means that another process uses the directory.
	ErrDirInUse = errors.New("data directory in use")
	// ErrNotDataDir means that the directory has files that OpenDataDir did not make, or
	// files of another version.
	ErrNotDataDir = errors.New("not a data directory of this version")
)

// IdentityDir is the folder of a data directory that may be made before OpenDataDir, because
// a program joins before it starts.
const IdentityDir = "identity"

const (
	markerName = "nusa.json"
	lockName   = "nusa.lock"
	// markerFormat is the only format that this version writes and reads.
	markerFormat = 1
)

// marker is the content of the file that names the owner of a data directory.
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

// OpenDataDir opens dir as the data directory of a role, for example "global",
// "regional/NAME" or "agent". If dir does not exist, it is created with mode 0700. dir
// must be empty or made by OpenDataDir. clusterID is empty while the cluster is unknown.
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

// checkForeign refuses a directory that has files but no marker, because it may be a
// directory of the user.
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
		case lockName, markerName + ".new", "lost+found", IdentityDir:
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

// ClusterID returns the id of the cluster to which the directory is bound; empty if it is
// not bound yet.
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

// write replaces the marker completely or not at all, even if power fails.
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
	if err := replace.File(d.Path(markerName), append(text, '\n')); err != nil {
		return err
	}
	d.marker = m
	return nil
}

// Close lets other processes use the directory. The lock file stays, because two processes
// could lock two different files if it were removed.
func (d *DataDir) Close() error { return d.lock.Close() }
