package serve

import "errors"

// Errors of OpenDataDir and SetCluster; their texts name the directory.
var (
	// ErrOtherRole: the directory belongs to another role.
	ErrOtherRole = errors.New("data directory of another role")
	// ErrOtherCluster: it belongs to another cluster.
	ErrOtherCluster = errors.New("data directory of another cluster")
	// ErrDirInUse: another process uses it now.
	ErrDirInUse = errors.New("data directory in use")
	// ErrNotDataDir: it holds something else.
	ErrNotDataDir = errors.New("not a data directory")
)

// DataDir is a directory that this process owns until Close.
type DataDir struct{}

// OpenDataDir takes dir for role ("global", "regional:NAME", "agent"…),
// creating it with mode 0700 if need be. clusterID may be empty while it is not
// known yet.
func OpenDataDir(dir, role, clusterID string) (*DataDir, error) { panic("unwritten") }

// Path of a file in the directory.
func (d *DataDir) Path(name ...string) string { panic("unwritten") }

// ClusterID that the directory is bound to; empty if none yet.
func (d *DataDir) ClusterID() string { panic("unwritten") }

// SetCluster binds the directory to a cluster, durably.
func (d *DataDir) SetCluster(id string) error { panic("unwritten") }

// Close lets others use the directory.
func (d *DataDir) Close() error { panic("unwritten") }
