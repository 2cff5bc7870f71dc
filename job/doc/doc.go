// Package doc reads YAML and JSON into one tree that has the position of every value,
// and writes the tree back. It knows nothing of jobs.
//
//   - tree.go: the tree, and which format a file has
//   - yaml.go: reading YAML
//   - json.go: reading JSON
//   - write.go: writing both
package doc
