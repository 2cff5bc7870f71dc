// Package doc reads YAML and JSON into one kind of tree, which has the position of every
// value, and writes trees as YAML or JSON. The package knows nothing of jobs.
//
//   - tree.go: the tree, and the detection of a file's format
//   - yaml.go: reads YAML
//   - json.go: reads JSON
//   - write.go: writes YAML and JSON
package doc
