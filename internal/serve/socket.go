package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// maxSocketPath is the length of the longest path of a Unix socket on Linux.
const maxSocketPath = 107

// CheckSocket returns an error if a path is too long for a socket.
func CheckSocket(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("socket %s: the path has %d bytes, and a Unix socket takes %d: name a shorter one with --socket", path, len(path), maxSocketPath)
	}
	return nil
}

// listenSocket opens a Unix socket that only root and the user of this process can use. It removes
// a socket that an earlier process has left.
func listenSocket(path string) (net.Listener, error) {
	if err := CheckSocket(path); err != nil {
		return nil, err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
			conn.Close()
			return nil, fmt.Errorf("socket %s: another process listens there: name another with --socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("socket: %w", err)
		}
	}
	lis, err := new(net.ListenConfig).Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("--socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), lis.Close())
	}
	return &socket{Listener: lis, user: os.Geteuid()}, nil
}

// socket accepts connections of root and of one user. The mode of the file alone would not do: the
// file has another mode for a moment.
type socket struct {
	net.Listener
	user int
}

// Accept implements net.Listener.
func (s *socket) Accept() (net.Conn, error) {
	for {
		conn, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		user, err := userOf(conn)
		if err == nil && (user == 0 || user == s.user) {
			return &local{Conn: conn, user: user}, nil
		}
		conn.Close()
	}
}

// userOf returns the user of the process at the other end of a Unix socket.
func userOf(conn net.Conn) (int, error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, failed); err != nil {
		return 0, err
	}
	return int(cred.Uid), nil
}

// local is a connection from this machine of a user who may administer the server.
type local struct {
	net.Conn
	user int
}

// Administrator marks the connection for package trust.
func (*local) Administrator() {}

// RemoteAddr implements net.Conn.
func (l *local) RemoteAddr() net.Addr { return localAddr(l.user) }

// localAddr is the address of a user of this machine.
type localAddr int

// Network implements net.Addr.
func (localAddr) Network() string { return "unix" }

// String implements net.Addr.
func (a localAddr) String() string { return fmt.Sprintf("uid %d of this machine", int(a)) }
