// Package replace writes a file completely or not at all.
package replace

import (
	"errors"
	"os"
	"path/filepath"
)

// File writes a file completely or not at all, even if power fails. Only the owner can read
// the file. While File writes, a file with the suffix ".new" exists.
func File(path string, text []byte) error {
	tmp := path + ".new"
	// A file or a link that is left there would keep its mode, or lead to another file.
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
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
