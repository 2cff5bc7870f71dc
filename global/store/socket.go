package store

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
)

const (
	// socketName is the file in the member's directory where etcd's tools reach the member.
	socketName = "client.sock"
	// maxSocketPath is the longest path of a Unix socket on Linux.
	maxSocketPath = 107
)

// socket is the Unix socket on which the embedded member serves clients of its own user.
type socket struct {
	path string
	// dir is open while the listener uses the path through it, nil otherwise.
	dir *os.File
	// listen is what the listener opens, advertised is what the cluster stores as the address.
	listen, advertised url.URL
}

// openSocket makes the directory of the member, or takes over that of an older version, so
// that no other user reaches the socket in it. A path that is too long for a socket is opened
// through a descriptor of its directory.
func openSocket(dir string) (*socket, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, err
	}
	s := &socket{path: filepath.Join(dir, socketName)}
	s.listen = url.URL{Scheme: "unix", Path: s.path}
	s.advertised = s.listen
	if len(s.path) <= maxSocketPath {
		return s, nil
	}
	opened, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	s.dir, s.listen.Path = opened, fmt.Sprintf("/proc/self/fd/%d/%s", opened.Fd(), socketName)
	if _, err := os.Stat(filepath.Dir(s.listen.Path)); err != nil {
		opened.Close()
		return nil, fmt.Errorf("the path %s has %d bytes, a Unix socket takes %d, and /proc is not mounted: choose a shorter data directory: %w",
			s.path, len(s.path), maxSocketPath, err)
	}
	return s, nil
}

// protect lets only the user of this process connect.
func (s *socket) protect() error { return os.Chmod(s.path, 0o600) }

// close ends the use of the path. The listener has closed.
func (s *socket) close() {
	if s != nil && s.dir != nil {
		s.dir.Close()
	}
}
