package driver

import (
	"errors"
	"os"
	"path/filepath"
)

// ReplaceFile replaces a file durably: after a power loss the file has either its old or
// its new content. Only the owner can read the file.
func ReplaceFile(path string, data []byte) error {
	// A file or a link that is left there would keep its mode, or lead to another file.
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
