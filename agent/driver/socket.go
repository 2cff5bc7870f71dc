package driver

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrForbidden: the agent's user may not use the engine's socket. A retry is useless until
// the operator changes the permissions.
var ErrForbidden = errors.New("not allowed to use the engine's socket")

// Forbidden returns an error that wraps ErrForbidden if this process may not use the socket
// at a path. The error names the allowed users and the remedy. Forbidden returns nil if the
// process may use the socket or if the socket does not exist.
func Forbidden(path string) error {
	err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS)
	if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
		return nil
	}
	fi, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%w: user %d may not enter the folder of %s: run the agent as root, or as a user who may", ErrForbidden, os.Geteuid(), path)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%w: user %d may not write to %s", ErrForbidden, os.Geteuid(), path)
	}
	group := strconv.Itoa(int(st.Gid))
	if g, err := user.LookupGroupId(group); err == nil {
		group = g.Name
	}
	remedy := "run the agent as root"
	if fi.Mode().Perm()&0o020 != 0 {
		remedy += ", or add its user to the group " + group + " and restart it"
	}
	return fmt.Errorf("%w: %s is of user %d and group %s with mode %#o, the agent's user is %d: %s", ErrForbidden, path, st.Uid, group, fi.Mode().Perm(), os.Geteuid(), remedy)
}
