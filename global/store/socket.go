package store

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
)

const (
	// socketName is the name of the socket in the member's directory, by which etcd's tools reach
	// the member. Connections of other members are passed to peerSocketName.
	socketName, peerSocketName = "client.sock", "peer.sock"
	// maxSocketPath is the longest path of a Unix socket on Linux.
	maxSocketPath = 107
)

// socket is the Unix socket on which the embedded member serves clients of the same user.
type socket struct {
	path string
	// dir is the open directory if the listener's path leads through its descriptor, otherwise nil.
	dir *os.File
	// listen is the address that the listener opens. advertised is the address that the cluster
	// stores.
	listen, advertised url.URL
	// peer is the path at which the member listens for other members.
	peer string
}

// openSocket makes the member's directory, or takes over an existing one. It sets the directory's
// mode so that no other user reaches the socket. A path that is too long for a socket is opened
// through a descriptor of the directory.
func openSocket(dir string) (*socket, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, err
	}
	s := &socket{path: filepath.Join(dir, socketName), peer: filepath.Join(dir, peerSocketName)}
	s.listen = url.URL{Scheme: "unix", Path: s.path}
	s.advertised = s.listen
	if len(s.path) <= maxSocketPath {
		return s, nil
	}
	opened, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	through := fmt.Sprintf("/proc/self/fd/%d", opened.Fd())
	s.dir, s.listen.Path, s.peer = opened, filepath.Join(through, socketName), filepath.Join(through, peerSocketName)
	if _, err := os.Stat(filepath.Dir(s.listen.Path)); err != nil {
		opened.Close()
		return nil, fmt.Errorf("the path %s has %d bytes, a Unix socket takes %d, and /proc is not mounted: choose a shorter data directory: %w",
			s.path, len(s.path), maxSocketPath, err)
	}
	return s, nil
}

// protect allows only the user of this process to connect.
func (s *socket) protect() error {
	return errors.Join(os.Chmod(s.path, 0o600), os.Chmod(s.peer, 0o600))
}

// close closes the directory. The listener must be closed before.
func (s *socket) close() {
	if s != nil && s.dir != nil {
		s.dir.Close()
	}
}
