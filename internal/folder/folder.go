// Package folder judges by their paths alone whether folders of a host are below
// others: the one rule by which an agent gives folders away, and by which its
// region knows beforehand which it will not.
package folder

import (
	"path/filepath"
	"slices"
)

// Allowed says that a path is absolute and, cleaned, one of the folders or below
// one, component by component: /srv holds /srv/a, and neither /srvs nor
// /srv/../etc. Where links lead is not looked at.
func Allowed(path string, folders []string) bool {
	return filepath.IsAbs(path) && Below(filepath.Clean(path), folders)
}

// Below says that a clean path is one of the folders, or in one.
func Below(path string, folders []string) bool {
	return slices.ContainsFunc(folders, func(dir string) bool {
		rel, err := filepath.Rel(dir, path)
		return err == nil && filepath.IsLocal(rel)
	})
}
