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
	// maxSocket is how long a socket's path may be, in bytes, wherever it is
	// opened.
	maxSocket = 100
	// socketName is the socket's in its folder.
	socketName = "s"
	// elsewhere is how the name of a folder in the temporary folder begins.
	elsewhere = "nusa-plugin-"
)

// makeDir makes the folder of the socket below sockets, or where its path would
// be too long in the temporary folder. A link leads there from below sockets,
// and is there first: whoever comes after a kill finds it.
func (l *life) makeDir(sockets string) (err error) {
	if l.dir, err = os.MkdirTemp(sockets, ""); err != nil || len(l.dir)+1+len(socketName) <= maxSocket {
		return err
	}
	l.link, l.dir = l.dir, filepath.Join(os.TempDir(), elsewhere+filepath.Base(l.dir))
	if err := errors.Join(os.Remove(l.link), os.Symlink(l.dir, l.link)); err != nil {
		return err
	}
	if err := os.Mkdir(l.dir, 0o700); err != nil { // never one that is there
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

// sweep removes the folders of an agent's sockets that was killed.
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
		// Anybody may have made one of that name since. Of ours nobody else can
		// have changed anything.
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
