package folder

import (
	"path/filepath"
	"slices"
)

// Allowed reports whether path is absolute and, after cleaning, one of the folders or
// below one of them. For example, /srv/a is below /srv, but /srvs and /srv/../etc are not.
// Symbolic links are not followed.
func Allowed(path string, folders []string) bool {
	return filepath.IsAbs(path) && Below(filepath.Clean(path), folders)
}

// Below reports whether a clean path is one of the folders or below one of them.
func Below(path string, folders []string) bool {
	return slices.ContainsFunc(folders, func(dir string) bool {
		rel, err := filepath.Rel(dir, path)
		return err == nil && filepath.IsLocal(rel)
	})
}
