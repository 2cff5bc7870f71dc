package plugin

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	// maxSocket bounds the length of a socket's path, in bytes.
	maxSocket = 100
	// socketName is the socket's name in its folder.
	socketName = "s"
	// elsewhere is the prefix of the folders that are made in the temporary folder.
	elsewhere = "nusa-plugin-"
)

// makeDir makes the folder of the socket below sockets. If the path would be too long, it
// makes the folder in the temporary folder. In that case it first makes a link below
// sockets, so that a later agent finds the folder after a kill.
func (l *life) makeDir(sockets string) (err error) {
	l.dir, err = os.MkdirTemp(sockets, "")
	if err != nil || len(l.dir)+1+len(socketName) <= maxSocket {
		return err
	}
	l.link, l.dir = l.dir, filepath.Join(os.TempDir(), elsewhere+filepath.Base(l.dir))
	if err := errors.Join(os.Remove(l.link), os.Symlink(l.dir, l.link)); err != nil {
		return err
	}
	if err := os.Mkdir(l.dir, 0o700); err != nil { // fails if the folder exists
		_ = os.Remove(l.link)
		return err
	}
	return nil
}

func (l *life) removeDir() {
	_ = os.RemoveAll(l.dir)
	if l.link != "" {
		_ = os.Remove(l.link)
	}
}

// sweep removes the folders of the sockets of an agent that was killed.
func sweep(sockets string) error {
	entries, err := os.ReadDir(sockets)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		dir, err := os.Readlink(filepath.Join(sockets, e.Name()))
		if err != nil || !strings.HasPrefix(filepath.Base(dir), elsewhere) {
			continue
		}
		// In the meantime another user may have made a folder of the same name. Remove only a
		// folder of this user.
		fi, err := os.Lstat(dir)
		if err != nil || !fi.IsDir() {
			continue
		}
		if st, ok := fi.Sys().(*syscall.Stat_t); ok && int(st.Uid) == os.Geteuid() {
			_ = os.Remove(filepath.Join(dir, socketName))
			_ = os.Remove(dir)
		}
	}
	return os.RemoveAll(sockets)
}
